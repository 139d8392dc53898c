package servicefile

import (
	"slices"
	"strings"
)

// A Key is one key of a service file, for the documentation. All but Launchd and Differs are given.
type Key struct {
	Name    string // with its table's, as in allow.open
	Type    string
	Default string
	Launchd string // the keys of launchd.plist(5) that it comes from, joined by commas; empty: none
	Differs string // how it differs from these; empty: not at all
	Text    string
}

// Keys returns every key of a service file, in the order in which one writes them. The caller may change what it gets.
func Keys() []Key { return slices.Clone(keys) }

// launchdKeys returns the names of the property list's keys themselves: of KeepAlive.SuccessfulExit, the first.
func (k Key) launchdKeys() []string {
	var names []string
	for name := range strings.SplitSeq(k.Launchd, ", ") {
		name, _, _ = strings.Cut(name, ".")
		names = append(names, name)
	}
	return names
}

var keys = []Key{
	{
		Name: "name", Type: "string", Default: "none: required",
		Launchd: "Label",
		Differs: "The characters are those of an endpoint. No other file may have the name, and the refusal names the one that does.",
		Text:    "What the service is called in commands and lists: at most 128 letters, digits, `-` and `_`, in parts joined by dots, as in `com.example.echo`.",
	},
	{
		Name: "endpoints", Type: "array of strings", Default: "the name",
		Launchd: "MachServices",
		Differs: "A list and no dictionary: an endpoint has no options. One that another service has is refused and its owner named.",
		Text:    "What clients open: 1 to 64 names. The instance registers them itself. `fairlead.broker` is the broker's own.",
	},
	{
		Name: "program", Type: "array of strings", Default: "none: the broker never starts it, and others register it where `allow.register` lets them",
		Launchd: "ProgramArguments, Program",
		Differs: "The first is the program and an absolute path; there is no Program beside it, no search of PATH and no globbing. launchd requires one of the two.",
		Text: "The argument vector. That the program is there is seen when it is started. The process that is executed is the one that registers: a script that ends in the " +
			"server itself does so by `exec`.",
	},
	{
		Name: "environment", Type: "table of strings", Default: "none",
		Launchd: "EnvironmentVariables",
		Differs: "Names that begin with `FAIRLEAD_` are refused: the broker sets them.",
		Text:    "Variables of the program, beside those that the broker sets.",
	},
	{
		Name: "user", Type: "string or integer", Default: "the broker's user",
		Launchd: "UserName",
		Differs: "Also a number, which must be that of a user, too. An unknown one is a problem when the file is read, and again at the start.",
		Text:    "Whom instances run as: the user's primary and supplementary groups come with it. Only a broker that runs as root can have another than its own.",
	},
	{
		Name: "group", Type: "string or integer", Default: "the primary group of `user`; without that, the broker's",
		Launchd: "GroupName",
		Differs: "Also a number, which must be that of a group, too. The supplementary groups stay those of the user (launchd: InitGroups).",
		Text:    "The group that instances run as.",
	},
	{
		Name: "working_directory", Type: "string", Default: "`/`",
		Launchd: "WorkingDirectory",
		Differs: "It must be absolute.",
		Text:    "The folder that the program starts in.",
	},
	{
		Name: "umask", Type: "string", Default: "`\"022\"`",
		Launchd: "Umask",
		Differs: "Always octal digits in a string: an integer would be decimal in a property list, and in TOML. 000 is refused.",
		Text:    "Which permissions the program's new files do not get: `\"001\"` to `\"777\"`, umask(2).",
	},
	{
		Name: "nice", Type: "integer", Default: "0",
		Launchd: "Nice",
		Text:    "-20 (first) to 19 (last), setpriority(2). Below 0 needs a broker with the privilege.",
	},
	{
		Name: "limits", Type: "table of integers and strings", Default: "those of the broker",
		Launchd: "SoftResourceLimits, HardResourceLimits",
		Differs: "One table for both, with the names of setrlimit(2) in lower case: `nofile` for NumberOfFiles. ResidentSetSize has no effect on Linux and is unknown here.",
		Text: "By resource an integer for both limits, `\"unlimited\"`, or `\"SOFT:HARD\"`. Bytes: `as`, `core`, `data`, `fsize`, `memlock`, `msgqueue`, `stack`; seconds: `cpu`; " +
			"microseconds: `rttime`; a number: `nofile`, `nproc`, `sigpending`, `nice`, `rtprio`. `nofile` cannot be unlimited.",
	},
	{
		Name: "run_at_load", Type: "boolean", Default: "`false`",
		Launchd: "RunAtLoad",
		Text:    "Whether an instance is started when the broker has read the file, and not only when a client opens an endpoint. It needs `program`.",
	},
	{
		Name: "keep_alive", Type: "`\"never\"`, `\"always\"`, `\"on_failure\"` or `\"on_crash\"`", Default: "`\"never\"`",
		Launchd: "KeepAlive, KeepAlive.SuccessfulExit, KeepAlive.Crashed",
		Differs: "A word in place of a boolean or a dictionary: `on_failure` is SuccessfulExit false, `on_crash` is Crashed true. " +
			"There is no PathState, no OtherJobEnabled and no NetworkState.",
		Text: "After which ends an instance is started again without being asked for: none, all, an exit status that is not 0 or a signal, or a signal alone. It needs `program` unless it is `\"never\"`.",
	},
	{
		Name: "throttle_interval", Type: "duration", Default: "`\"10s\"`",
		Launchd: "ThrottleInterval",
		Differs: "With a unit. Every attempt counts, and the pause doubles up to 5 minutes; after five quick ends the service is suspended, which is shown and can be lifted.",
		Text:    "How long after a start the next one may be: more than 0, at most `\"1h\"`.",
	},
	{
		Name: "start_timeout", Type: "duration", Default: "`\"10s\"`",
		Differs: "launchd waits without end for a job to check in.",
		Text: "How long an instance has to register its endpoints: more than 0, at most `\"1h\"`. Then it is killed, and clients that wait are told so. One that has lost its registration " +
			"has as long to register again, and is then stopped in order.",
	},
	{
		Name: "stop_timeout", Type: "duration", Default: "`\"20s\"`",
		Launchd: "ExitTimeOut",
		Differs: "With a unit, and for the whole stop: launchd counts from SIGTERM. 0, which has launchd wait without end, is refused. SIGKILL goes to all that the instance started, and not to its process group alone.",
		Text: "How long an instance has from being asked to stop to SIGKILL: more than 0, at most `\"1h\"`. First its sessions are drained, for up to half of that; SIGTERM comes " +
			"then, or a quarter later to one that has drained and should end by itself.",
	},
	{
		Name: "idle_exit", Type: "duration", Default: "never",
		Launchd: "TimeOut, EnableTransactions",
		Differs: "TimeOut is a recommendation to the job. Here the broker asks the instance, which ends only if nothing has come in between: no open is lost.",
		Text: "How long an instance without sessions and running handlers stays, at most `\"24h\"`; `\"0s\"`: for ever. It needs `program`, " +
			"and does not go with `keep_alive = \"always\"`.",
	},
	{
		Name: "hang_timeout", Type: "duration", Default: "never",
		Differs: "launchd does not ask a job whether it is there.",
		Text: "How often the broker asks an instance whether it is there, and how long that has for its answer: `\"1s\"` to `\"1h\"`; `\"0s\"`: never. One that is alive and does not answer " +
			"ends as `hung`: it is killed, and follows the rules of a crash. The library answers, and no handler: a handler that takes long is no hang.",
	},
	{
		Name: "stdout", Type: "string", Default: "the instance's own log",
		Launchd: "StandardOutPath",
		Differs: "The default is a bounded log that `brokerctl service logs` shows, in place of /dev/null.",
		Text:    "Where standard output goes: an absolute path, which is appended to, or `\"inherit\"` for the broker's stderr. No folder on the way may be a link, or one that others than root and the broker's user can write.",
	},
	{
		Name: "stderr", Type: "string", Default: "the instance's own log",
		Launchd: "StandardErrorPath",
		Differs: "As for `stdout`.",
		Text:    "Where standard error goes: as for `stdout`.",
	},
	{
		Name: "allow.open", Type: "array of rules", Default: "`[]`: root and the broker's user alone",
		Differs: "launchd has no such list: whoever is in the domain can look a name up.",
		Text: "Who else may open its endpoints. A rule is `\"uid:N\"`, `\"gid:N\"`, `\"user:NAME\"`, `\"group:NAME\"` or `\"any\"`; one that fits is enough. Groups are the peer's effective and supplementary ones. " +
			"A name is resolved when the file is read.",
	},
	{
		Name: "allow.register", Type: "array of rules", Default: "`[]`: root and the broker's user alone",
		Differs: "launchd lets only the job itself check in.",
		Text:    "Whose processes, which the broker did not start, may serve its endpoints, and no others.",
	},
	{
		Name: "allow.admin", Type: "array of rules", Default: "`[]`: root and the broker's user alone",
		Differs: "launchd knows the owner of a domain and root alone.",
		Text:    "Who else may start and stop it, and see and close all its sessions.",
	},
}
