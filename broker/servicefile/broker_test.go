package servicefile_test

import "github.com/fairlead-dev/fairlead/broker"

// brokerEndpoint is what no service file may have.
const brokerEndpoint = broker.Endpoint
