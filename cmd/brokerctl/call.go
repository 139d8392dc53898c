package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/internal/explain"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
)

// A callee is a method that is called, and what its service says of it.
type callee struct {
	session *client.Session
	types   *schema.Description
	method  schema.Method
	request wire.Raw
	piped   bool // the request was read from standard input
}

// call calls a method of any endpoint with JSON, and prints what comes as JSON.
func (c *command) call(ctx context.Context, words []string) error {
	if len(words) < 2 || len(words) > 3 {
		return usageError{"call takes an endpoint, a method, and maybe the request: JSON, @FILE, or - for standard input"}
	}
	if err := checkCodes(c.accept); err != nil {
		return err
	}
	request := ""
	if len(words) == 3 {
		request = words[2]
	}
	text, given, err := c.requestText(ctx, request)
	if err != nil {
		return err
	}
	s, err := client.Dial(ctx, words[0], c.options())
	if err != nil {
		return c.accepted(err)
	}
	defer s.Close()
	to := callee{session: s, piped: request == "-"}
	if err := to.find(ctx, words[1]); err != nil {
		return c.accepted(err)
	}
	kind := services.Kind(to.method.Kind)
	switch {
	case given && kind == services.KindStream:
		return usageError{words[1] + " is a stream of bytes: it takes what is read from standard input, and no request"}
	case given:
		to.request, err = to.types.FromJSON(to.method.Request, text)
	default:
		to.request = to.types.Zero(to.method.Request)
	}
	if err != nil {
		return fmt.Errorf("request to %s: %w%s", words[1], err, to.quoting(request))
	}
	switch kind {
	case services.KindOneWay:
		return c.accepted(to.tell(ctx))
	case services.KindStream:
		return c.accepted(c.exchange(ctx, to))
	case services.KindStreaming:
		return c.accepted(c.converse(ctx, to))
	}
	reply, err := client.Call[wire.Raw](ctx, s, words[1], to.request)
	if err != nil {
		return c.accepted(err)
	}
	b, err := to.types.ToJSON(to.method.Reply, reply)
	if err != nil {
		return err
	}
	return c.printValue(b)
}

// quoting says of an operand that is not what the method takes, and would be as a string, how a string is written in a shell.
func (to *callee) quoting(operand string) string {
	quoted, err := encode(operand)
	if err == nil {
		_, err = to.types.FromJSON(to.method.Request, quoted)
	}
	if err != nil || operand == "-" || strings.HasPrefix(operand, "@") {
		return ""
	}
	if len(operand) > maxQuoted || strings.ContainsAny(operand, `'"\`) {
		quoted = []byte(`"…"`)
	}
	return fmt.Sprintf("; a string is written '%s'", quoted)
}

// maxQuoted is how many bytes of an operand are shown as they are to be written.
const maxQuoted = 64

// find asks the service for a method. One that does not describe its methods is called with what JSON is by itself.
func (to *callee) find(ctx context.Context, name string) (err error) {
	to.types, err = describe(ctx, to.session)
	if wire.CodeOf(err) == wire.UnknownMethod {
		to.types, to.method = &schema.Description{}, schema.Method{Name: name}
		return nil
	}
	if err != nil {
		return err
	}
	switch found := to.types.Find(name); {
	case len(found) > 0:
		to.method = found[0] // a call comes before a stream of the same name
	case len(to.types.Methods) == schema.MaxMethods: // it may be among those that are not described
		to.method = schema.Method{Name: name}
	default:
		return noMethod(to.types, to.session.Endpoint(), name)
	}
	return nil
}

// tell sends a one-way message, and returns when it has been handled.
func (to *callee) tell(ctx context.Context) error {
	if err := to.session.Send(ctx, to.method.Name, to.request); err != nil {
		return err
	}
	return to.session.Flush(ctx)
}

// requestText returns the JSON that an operand stands for, and whether one was given.
func (c *command) requestText(ctx context.Context, operand string) (text []byte, given bool, err error) {
	var in io.Reader
	switch {
	case operand == "":
		return nil, false, nil
	case operand == "-":
		in = patient{ctx, c.in}
	case strings.HasPrefix(operand, "@"):
		f, err := os.Open(operand[1:])
		if err != nil {
			return nil, false, usageError{err.Error()}
		}
		defer f.Close()
		in = patient{ctx, f}
	default:
		return []byte(operand), true, nil
	}
	text, err = io.ReadAll(io.LimitReader(in, maxRequest+1))
	if err == nil && len(text) > maxRequest {
		err = usageError{fmt.Sprintf("the request has more than %d MiB", maxRequest>>20)}
	}
	return text, true, err
}

// maxRequest is how long the JSON of a request may be, in bytes: what it becomes may have wire.MaxLarge.
const maxRequest = 32 << 20

// printValue prints JSON: for people on a terminal, on one line elsewhere.
func (c *command) printValue(b []byte) error {
	var out bytes.Buffer
	if c.terminal() && !c.json {
		if err := json.Indent(&out, b, "", "  "); err != nil {
			return err
		}
	} else {
		out.Write(b)
	}
	out.WriteByte('\n')
	_, err := c.out.Write(out.Bytes())
	return err
}

// A failure is an error as it is printed where --accept has its code.
type failure struct {
	Code   wire.Code     `json:"code"`
	Text   string        `json:"text"`
	Holder *wire.Holder  `json:"holder,omitempty"`
	Retry  time.Duration `json:"retry,omitempty"` // in nanoseconds
}

// accepted prints an error whose code was asked for, and returns any other. That there is no broker is no answer, and nor is what the user has mistyped.
func (c *command) accepted(err error) error {
	_, none := errors.AsType[*client.NoBrokerError](err)
	_, stranger := errors.AsType[*client.StrangerError](err)
	_, mistyped := errors.AsType[usageError](err)
	if err == nil || none || stranger || mistyped || !slices.Contains(c.accept, string(wire.CodeOf(err))) {
		return err
	}
	e := wire.AsError(err)
	b, err := encode(failure{e.Code, e.Text, e.Holder, e.Retry})
	if err != nil {
		return err
	}
	return c.printValue(b)
}

// checkCodes refuses what is no code, and says which may be meant.
func checkCodes(given []string) error {
	for _, code := range given {
		if _, err := explain.Of(code); err != nil {
			return usageError{"--accept: " + wire.AsError(err).Text}
		}
	}
	return nil
}
