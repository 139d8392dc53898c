package services

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/schema"
	"github.com/fairlead-dev/fairlead/wire/session"
)

// A signature is what is told of a method: the Go types of its values, nil for those it has none of, and what its author says.
type signature struct {
	request, reply, in, out reflect.Type
	doc                     string
}

func callOf[Request, Reply any]() signature {
	return signature{request: pointed(reflect.TypeFor[Request]()), reply: reflect.TypeFor[Reply]()}
}

func streamingOf[Request, In, Out any]() signature {
	return signature{request: pointed(reflect.TypeFor[Request]()), in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}
}

// pointed returns the struct that a pointer points to: a handler that takes one wants a value.
func pointed(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && t != reflect.TypeFor[*os.File]() {
		return t.Elem()
	}
	return t
}

// Doc says in a few words what a method does, for whoever lists the methods of the endpoint: at most schema.MaxDoc bytes are told. It panics if the Mux has no such
// method yet.
func Doc(mux *Mux, name, text string) {
	mux.mu.Lock()
	defer mux.mu.Unlock()
	m, isMethod := mux.methods[name]
	s, isStream := mux.streams[name]
	if !isMethod && !isStream || strings.HasPrefix(name, schema.Reserved) {
		panic(fmt.Sprintf("services: a text for method %q, which is not there", name))
	}
	if isMethod {
		m.signature.doc = text
		mux.methods[name] = m
	}
	if isStream {
		s.signature.doc = text
		mux.streams[name] = s
	}
}

// describe serves schema.Describe.
func (mux *Mux) describe(ctx context.Context, _ *session.Message) (any, error) {
	return mux.description(FromContext(ctx).Endpoint()), nil
}

// description describes the methods by their names, as many as one has.
func (mux *Mux) description(endpoint string) schema.Description {
	var types schema.Types
	d := schema.Description{Endpoint: endpoint, Methods: []schema.Method{}}
	add := func(name string, kind Kind, s signature) {
		if !strings.HasPrefix(name, schema.Reserved) {
			d.Methods = append(d.Methods, schema.Method{
				Name: name, Kind: string(kind), Doc: wire.Cut(s.doc, schema.MaxDoc),
				Request: types.Of(s.request), Reply: types.Of(s.reply), In: types.Of(s.in), Out: types.Of(s.out),
			})
		}
	}
	mux.mu.RLock()
	defer mux.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(mux.methods)) {
		add(name, mux.methods[name].kind, mux.methods[name].signature)
	}
	for _, name := range slices.Sorted(maps.Keys(mux.streams)) {
		add(name, mux.streams[name].kind, mux.streams[name].signature)
	}
	slices.SortStableFunc(d.Methods, func(a, b schema.Method) int { return cmp.Compare(a.Name, b.Name) })
	d.Methods = d.Methods[:min(len(d.Methods), schema.MaxMethods)]
	d.Types = types.All()
	return d
}
