package strictfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// maxProblems bounds what is told of one file: beyond that, nobody reads it.
const maxProblems = 100

// A File is one that is being read. What it has are values as go-toml decodes them into an any. The methods that return a value note a Problem where it
// is not of the type that the key has, and then return the type's zero value. A path names a key or an element: "program[0]", "network[2].routes[0].to".
type File struct {
	Path     string
	problems []*Problem
	lines    lines
	wrong    map[string]bool // keys that have a problem
}

// New returns a File without problems.
func New(path string) *File { return &File{Path: path, wrong: map[string]bool{}} }

// Parse takes a document apart. It returns false, and has noted why, where it is no TOML.
func (f *File) Parse(document []byte) (values map[string]any, ok bool) {
	if err := toml.Unmarshal(document, &values); err != nil {
		f.noTOML(document, err)
		return nil, false
	}
	f.lines = linesOf(document)
	return values, true
}

// noTOML notes what is wrong with the line at which go-toml has ended, the first.
func (f *File) noTOML(document []byte, err error) {
	p := &Problem{File: f.Path, Rule: "no TOML: " + strings.TrimPrefix(TextOf(err), "toml: ")}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		p.Line, _ = e.Position()
		if known := mistake(document, p.Line); known != "" {
			p.Rule = "no TOML: " + known
		}
		var parts []string
		for _, part := range e.Key()[:min(len(e.Key()), deepest)] {
			parts = append(parts, ShowKey(part))
		}
		p.Key = strings.Join(parts, ".")
	}
	f.problems = append(f.problems, p)
}

// Read loads the file, of at most so many bytes, and hands the values of its document on, if it is one. What is wrong with it is a problem.
func (f *File) Read(most int, document func(values map[string]any)) {
	content, rule := Load(f.Path, most)
	if rule != "" {
		f.Problem("", "%s", rule)
	} else if values, ok := f.Parse(content); ok {
		document(values)
	}
}

// Problem notes a rule that is broken at a path; an empty one is the file itself.
func (f *File) Problem(at, format string, args ...any) {
	key := KeyOf(at)
	f.wrong[key] = true
	f.problems = append(f.problems, &Problem{File: f.Path, Line: f.lines.of(at), Key: key, Rule: fmt.Sprintf(format, args...)})
}

// Broken reports whether the file has a problem.
func (f *File) Broken() bool { return len(f.problems) > 0 }

// Wrong reports whether a key has a problem.
func (f *File) Wrong(key string) bool { return f.wrong[key] }

// Line returns the line of a path, or of what it is in; 0 for what is not there.
func (f *File) Line(at string) int { return f.lines.of(at) }

// Problems returns what was noted, in the order of the lines. The last of more than 100 is how many more there are.
func (f *File) Problems() []*Problem {
	list := slices.SortedFunc(slices.Values(f.problems), Compare)
	if more := len(list) - maxProblems; more > 0 {
		list = append(list[:maxProblems:maxProblems], &Problem{File: f.Path, Rule: fmt.Sprintf("and %d more problems", more)})
	}
	return list
}

// Typed returns a value of the type that the key has, or notes that it is of another.
func Typed[T any](f *File, at string, v any) (value T) {
	value, ok := v.(T)
	if !ok {
		f.Problem(at, "want %s, and this is %s", KindOf(any(value)), KindOf(v))
	}
	return value
}

// KindOf returns what TOML calls the type of a value, with its article.
func KindOf(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case []any:
		return "an array"
	case map[string]any:
		return "a table"
	}
	return "a date or a time"
}

// Text returns a string that is not empty.
func (f *File) Text(at string, v any) string {
	text := Typed[string](f, at, v)
	if text == "" && !f.wrong[KeyOf(at)] {
		f.Problem(at, "is empty: leave the key out for its default")
	}
	return text
}

// Each calls do for every string of an array.
func (f *File) Each(key string, v any, do func(at, text string)) {
	for i, item := range Typed[[]any](f, key, v) {
		at := Index(key, i)
		if text, ok := item.(string); ok {
			do(at, text)
		} else {
			f.Problem(at, "want strings, and this is %s", KindOf(item))
		}
	}
}

// Items returns the strings of an array that has some.
func (f *File) Items(key string, v any) []string {
	var list []string
	f.Each(key, v, func(_, text string) { list = append(list, text) })
	if len(list) == 0 && !f.wrong[key] {
		f.Problem(key, "is empty: leave the key out for its default")
	}
	return list
}

// Duration returns a duration. It may be 0 or negative.
func (f *File) Duration(key string, v any) time.Duration {
	if n, ok := v.(int64); ok {
		f.Problem(key, `%d has no unit: write "%ds" for seconds`, n, n)
		return 0
	}
	text := f.Text(key, v)
	if f.wrong[key] {
		return 0
	}
	value, err := time.ParseDuration(text)
	switch {
	case err != nil && numeric(text):
		f.Problem(key, `%s has no unit: write "%ss" for seconds`, Quote(text), text)
	case err != nil:
		f.Problem(key, `%s: want a number and its unit, as "10s", "500ms" or "1m30s"`, Quote(text))
	}
	return value
}

func numeric(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
