package servicefile

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
)

// A file is a service file that is being read.
type file struct {
	*strictfile.File
	service Service
	masks   bool // it declares nothing
}

// Read reads one service file, with defaults in place of what it does not say. It must be a regular file of at most 64 KiB, or a link to one, that belongs
// to root or to this user and that nobody else may write. Every problem is returned, in the order of the lines, and then there is no service.
// Two things are not told in full: a document that is no TOML ends at its first problem, and the last of more than 100 problems is how many more there are. An empty file and a link to /dev/null declare nothing: a Service without a name, and no problem.
func Read(path string) (Service, []*Problem) {
	f := read(path, nil)
	return f.service, f.Problems()
}

// read reads a file. One of the name of a built-in service begins with what that is.
func read(path string, builtIn []Service) *file {
	f := &file{File: strictfile.New(path)}
	document, rule := strictfile.Load(path, maxFile)
	switch {
	case rule != "":
		f.Problem("", "%s", rule)
	case len(document) == 0:
		f.masks = true
		return f
	default:
		f.parse(document, builtIn)
	}
	if f.Broken() {
		f.service = Service{}
	}
	return f
}

// parse takes a document apart and holds it against the rules.
func (f *file) parse(document []byte, builtIn []Service) {
	values, ok := f.Parse(document)
	if !ok {
		return
	}
	if i := slices.IndexFunc(builtIn, func(s Service) bool { return s.Name == values["name"] }); i >= 0 {
		f.service = builtIn[i]
	}
	f.service.File = f.Path
	f.table("", values)
	if _, ok := values["name"]; !ok {
		f.Problem("name", "is missing: a service file names its service")
	}
	breaches := slices.DeleteFunc(f.service.breaches(), func(b breach) bool {
		return f.Wrong(strictfile.KeyOf(b.at)) || f.Wrong(b.needs) // what they are is not known
	})
	for _, b := range breaches {
		f.Problem(b.at, "%s", b.rule)
	}
	f.service = f.service.WithDefaults()
}

// table sets the keys of the document or, with a name, of a table in it.
func (f *file) table(name string, values map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(values)) {
		key := strictfile.ShowKey(k)
		if name != "" {
			key = name + "." + key
		}
		if !f.set(key, values[k]) {
			f.Problem(key, "unknown key%s", hint(name, k))
		}
	}
}

// set sets one key, and reports whether there is one of that name.
func (f *file) set(key string, v any) bool {
	s := &f.service
	switch key {
	case "name":
		s.Name = f.Text(key, v)
	case "endpoints":
		s.Endpoints = f.Items(key, v)
	case "program":
		s.Program = f.Items(key, v)
	case "environment":
		s.Environment = f.environment(key, v)
	case "user":
		s.User = f.account(key, v, userID)
	case "group":
		s.Group = f.account(key, v, groupID)
	case "working_directory":
		s.WorkingDirectory = f.Text(key, v)
	case "umask":
		s.Umask = f.umask(key, v)
	case "nice":
		s.Nice = f.nice(key, v)
	case "limits":
		s.Limits = f.limits(key, v)
	case "run_at_load":
		s.RunAtLoad = strictfile.Typed[bool](f.File, key, v)
	case "keep_alive":
		s.KeepAlive = f.keepAlive(key, v)
	case "stdout":
		s.Stdout = f.Text(key, v)
	case "stderr":
		s.Stderr = f.Text(key, v)
	case "allow":
		f.table(key, strictfile.Typed[map[string]any](f.File, key, v))
	case "allow.open":
		s.Allow.Open = f.rules(key, v)
	case "allow.register":
		s.Allow.Register = f.rules(key, v)
	case "allow.admin":
		s.Allow.Admin = f.rules(key, v)
	default:
		i := slices.IndexFunc(durations, func(d duration) bool { return d.key == key })
		if i >= 0 {
			*durations[i].of(s) = f.duration(durations[i], v)
		}
		return i >= 0
	}
	return true
}

func (f *file) environment(key string, v any) map[string]string {
	variables := map[string]string{}
	for name, value := range strictfile.Typed[map[string]any](f.File, key, v) {
		if text, ok := value.(string); ok {
			variables[name] = text
		} else {
			f.Problem(key+"."+strictfile.ShowKey(name), "want a string, and this is %s%s", strictfile.KindOf(value), misplaced(key, name))
		}
	}
	return unlessEmpty(variables)
}

func (f *file) limits(key string, v any) map[string]Limit {
	limits := map[string]Limit{}
	for name, value := range strictfile.Typed[map[string]any](f.File, key, v) {
		at := key + "." + strictfile.ShowKey(name)
		if _, ok := Resource(name); !ok {
			f.Problem(at, "%s%s", noResource(), misplaced(key, name))
			continue
		}
		text, ok := value.(string)
		if n, whole := value.(int64); whole {
			text, ok = strconv.FormatInt(n, 10), true
		}
		if !ok {
			f.Problem(at, `want an integer, "unlimited" or "SOFT:HARD", and this is %s`, strictfile.KindOf(value))
		} else if limit, err := parseLimit(text); err != nil {
			f.Problem(at, "%s", err)
		} else {
			limits[name] = limit
		}
	}
	return unlessEmpty(limits)
}

func unlessEmpty[V any](m map[string]V) map[string]V {
	if len(m) == 0 {
		return nil
	}
	return m
}

// account returns the name or the number of somebody that the system knows.
func (f *file) account(key string, v any, resolve func(string) (uint32, error)) string {
	if n, ok := v.(int64); ok {
		v = strconv.FormatInt(n, 10)
	}
	name := f.Text(key, v)
	if !f.Wrong(key) {
		if _, err := resolve(name); err != nil {
			f.Problem(key, "%s", strictfile.TextOf(err))
		}
	}
	return name
}

var octal = regexp.MustCompile(`^[0-7]{1,4}$`)

func (f *file) umask(key string, v any) uint32 {
	text, ok := v.(string)
	if !ok || !octal.MatchString(text) {
		f.Problem(key, `want a string of octal digits, as "022"`)
		return 0
	}
	n, _ := strconv.ParseUint(text, 8, 32) // four digits
	if n == 0 {
		f.Problem(key, "want 001 to 777: what the program creates would be everybody's to write; it may still set a umask of 0 itself")
	}
	return uint32(n)
}

func (f *file) nice(key string, v any) int {
	n := strictfile.Typed[int64](f.File, key, v)
	if n < minNice || n > maxNice {
		f.Problem(key, outOfRange, n, minNice, maxNice)
	}
	return int(n)
}

func (f *file) keepAlive(key string, v any) KeepAlive {
	text, _ := v.(string)
	i := slices.Index(keepAlives, text)
	if i < 0 {
		f.Problem(key, `want "%s"`, strings.Join(keepAlives, `" or "`))
		return Never
	}
	return KeepAlive(i)
}

// duration returns a duration that is positive, or 0 where it may be.
func (f *file) duration(d duration, v any) time.Duration {
	value := f.Duration(d.key, v)
	if value == 0 && d.zero != "" && !f.Wrong(d.key) {
		f.Problem(d.key, "must be more than 0: %s", d.zero)
	}
	return value
}

func (f *file) rules(key string, v any) Rules {
	var rules Rules
	f.Each(key, v, func(at, text string) {
		rule, err := ParseRule(text)
		if err != nil {
			f.Problem(at, "%s", strictfile.TextOf(err))
		}
		rules = append(rules, rule)
	})
	return rules
}
