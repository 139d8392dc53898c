package servicefile

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/internal/strictfile"
)

const (
	subfolder = "services.d"
	suffix    = ".toml"
	maxFile   = 64 // KiB
)

// Load reads the service files *.toml of services.d in each of the folders, in the order of the files' names over all folders. Names that begin with a dot are
// no service files. A folder that is not there is no problem.
//
// An earlier folder has precedence: a file in it masks those of the same name in later ones. A file with a problem does so too, as what it was to
// replace may be what it was to prevent; and so do the files of a services.d that is refused because somebody else may write it. A file that is empty,
// or a link to /dev/null, masks and declares nothing.
//
// A file with a problem is left out alone. So is one that declares a name or an endpoint that an earlier file has: the problem names the owner. The problems of
// folders come first, in the order of the folders, then those of files, in the order of the files and their lines.
func Load(folders ...string) ([]Service, []*Problem) { return LoadWith(nil, folders...) }

// LoadWith is Load with services that are built in, which have their defaults and no File. A file of the name of one says how it differs: what it leaves out,
// also the program, is as it is built in. A file of another name that has an endpoint of one is left out. What no file declares anew is among the
// services, too.
func LoadWith(builtIn []Service, folders ...string) ([]Service, []*Problem) {
	files, problems := list(folders)
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] != "" { // else its folder is refused
			paths = append(paths, files[name])
		}
	}
	services, more := ReadAll(builtIn, paths...)
	return services, append(problems, more...)
}

// ReadAll is LoadWith for files that are named, in this order.
func ReadAll(builtIn []Service, paths ...string) (services []Service, problems []*Problem) {
	owners := newOwners(builtIn)
	for _, path := range paths {
		f := read(path, builtIn)
		if !f.Broken() && !f.masks {
			owners.take(f)
		}
		problems = append(problems, f.Problems()...)
		if !f.Broken() && !f.masks {
			services = append(services, f.service)
		}
	}
	for _, s := range builtIn {
		if owners.names[s.Name].File == "" {
			services = append(services, s)
		}
	}
	return services, problems
}

// list returns the paths of the service files by their names; empty for those that mask and must not be read.
func list(folders []string) (files map[string]string, problems []*Problem) {
	files = map[string]string{}
	for _, folder := range folders {
		path := filepath.Join(folder, subfolder)
		names, rule, err := listFolder(path)
		if err != nil {
			rule = strictfile.Reason(err)
		}
		if rule != "" {
			problems = append(problems, &Problem{File: path, Rule: rule})
		}
		for _, name := range names {
			_, masked := files[name]
			switch {
			case masked:
			case rule != "":
				files[name] = ""
			default:
				files[name] = filepath.Join(path, name)
			}
		}
	}
	return files, problems
}

// listFolder returns the names of the service files in a folder, and the rule that it breaks, if any.
func listFolder(path string) (names []string, rule string, err error) {
	d, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer d.Close()
	info, err := d.Stat()
	if err != nil {
		return nil, "", err
	}
	all, err := d.Readdirnames(-1)
	for _, name := range all {
		if strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, ".") {
			names = append(names, name)
		}
	}
	return names, strictfile.Distrust(info), err
}

// owners are the services that have a name or an endpoint.
type owners struct{ names, endpoints map[string]Service }

func newOwners(builtIn []Service) owners {
	o := owners{names: map[string]Service{}, endpoints: map[string]Service{}}
	for _, s := range builtIn {
		o.enter(s)
	}
	return o
}

func (o owners) enter(s Service) {
	o.names[s.Name] = s
	for _, e := range s.Endpoints {
		o.endpoints[e] = s
	}
}

// take gives a file what it declares, or notes that others have it. What is built in gives way to a file of its name.
func (o owners) take(f *file) {
	s := f.service
	former, taken := o.names[s.Name]
	replaces := taken && former.File == ""
	if taken && !replaces {
		f.Problem("name", "%s is the service of %s", s.Name, placeOf(former))
	}
	for i, e := range s.Endpoints {
		owner, taken := o.endpoints[e]
		switch at := strictfile.Index("endpoints", i); {
		case !taken, replaces && owner.Name == s.Name:
		case f.Line(at) > 0:
			f.Problem(at, "%s is an endpoint of service %s, of %s", e, owner.Name, placeOf(owner))
		case owner.Name != s.Name: // the name that is taken says it all
			f.Problem("name", "%s, which is the endpoint where endpoints says no other, is one of service %s, of %s", e, owner.Name, placeOf(owner))
		}
	}
	if f.Broken() {
		return
	}
	for _, e := range former.Endpoints {
		delete(o.endpoints, e)
	}
	o.enter(s)
}

// placeOf says where an owner is declared.
func placeOf(owner Service) string {
	if owner.File == "" {
		return "the broker itself"
	}
	return strictfile.Quote(owner.File)
}
