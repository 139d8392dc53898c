package main

import (
	"context"
	"io"

	"github.com/fairlead-dev/fairlead/internal/nearest"
)

// completions are the scripts by shell. Each asks brokerctl itself, by the word completing.
var completions = map[string]string{
	"bash": `# Completion of brokerctl for bash; see bash(1), Programmable Completion.
_brokerctl() {
	local -a words=()
	local word glued='' cut='' offer
	COMPREPLY=()
	# bash takes = for a word of its own: --state=o is three of them, of which only the last is replaced.
	for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
		if [[ ${#words[@]} -gt 0 && ($glued || $word == =) ]]; then
			words[-1]+=$word
		else
			words+=("$word")
		fi
		if [[ $word == = ]]; then glued=yes; else glued=''; fi
	done
	if [[ ${words[-1]} == --*=* ]]; then
		cut=${words[-1]%%=*}=
	fi
	while IFS=$'\t' read -r offer _; do
		COMPREPLY+=("${offer#"$cut"}")
	done < <(command "$1" __complete "${words[@]}" 2>/dev/null)
}
complete -F _brokerctl brokerctl
`,
	"zsh": `#compdef brokerctl
# Completion of brokerctl for zsh; see zshcompsys(1).
_brokerctl() {
	local -a offers shown
	local word about
	while IFS=$'\t' read -r word about; do
		offers+=("$word")
		shown+=("$word${about:+  -- $about}")
	done < <(command "$words[1]" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
	compadd -l -d shown -a offers
}
if [ "$funcstack[1]" = _brokerctl ]; then
	_brokerctl "$@"
else
	compdef _brokerctl brokerctl
fi
`,
	"fish": `# Completion of brokerctl for fish; see fish's complete.
function __brokerctl_complete
	set -l words (commandline -opc)
	set -l last (commandline -ct)
	command $words[1] __complete $words[2..-1] "$last" 2>/dev/null
end
complete -c brokerctl -f -a '(__brokerctl_complete)'
`,
}

// completion prints the script for a shell.
func (c *command) completion(_ context.Context, shell string) error {
	script, known := completions[shell]
	if !known {
		return usageError{"completion takes " + aShell + nearest.Question(shell, []string{"bash", "zsh", "fish"})}
	}
	_, err := io.WriteString(c.out, script)
	return err
}
