# Thin aliases; .ci/run is what decides.
.PHONY: check build test long demo bench faults ci

check: build test

build:
	go build ./...

test:
	go vet ./...
	go test -race ./...

long:
	go test -race -timeout 60m ./e2e ./wire/... ./services/network/... -args -long

demo:
	go run ./cmd/brokerd demo

# The machine should have nothing else to do.
bench:
	go run ./cmd/internal/performance docs/performance.md

# Nothing else should run: it has hundreds of clients.
faults:
	go test -timeout 0 -run Promised -v ./e2e/faults -args -faults 10m -report ../../docs/reliability.md

ci:
	bash .ci/run
