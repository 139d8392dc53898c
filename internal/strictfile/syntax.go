package strictfile

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// mistake says what people most often get wrong in a line that go-toml does not take, in words that need no knowledge of its grammar; empty: what else it says.
func mistake(document []byte, line int) string {
	lines := strings.Split(string(document), "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	text := strings.TrimSpace(lines[line-1])
	key, value, pair := strings.Cut(text, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	switch {
	case !utf8.ValidString(text):
		return "the line is not UTF-8"
	case text == "" || strings.HasPrefix(text, "#"):
		return ""
	case strings.HasPrefix(text, "["):
		if !strings.Contains(text, "]") {
			return "the name of a table has no ] behind it"
		}
		return ""
	case !pair:
		return "want KEY = VALUE, and this is " + Quote(text)
	case value == "" || strings.HasPrefix(value, "#"):
		return Quote(key) + " has no value behind ="
	}
	return wrongValue(key, value)
}

// wrongValue is mistake for what stands behind a key.
func wrongValue(key, value string) string {
	switch lower := strings.ToLower(value); {
	case !strings.HasPrefix(value, `"""`) && !closes(value, '"'), !strings.HasPrefix(value, `'''`) && !closes(value, '\''):
		return "the text behind " + Quote(key) + " has no quote at its end"
	case lower == "true" || lower == "false" || lower == "yes" || lower == "no" || lower == "on" || lower == "off":
		return "want true or false, in small letters, and this is " + Quote(value)
	case unicode.IsLetter([]rune(value)[0]):
		return "a text stands in quotes: want " + ShowKey(key) + ` = "…", and this is ` + Quote(value)
	}
	return ""
}

// closes reports whether a value that begins with a quote has another one, that is not escaped. Others do.
func closes(value string, quote byte) bool {
	if value[0] != quote {
		return true
	}
	for i := 1; i < len(value); i++ {
		switch {
		case value[i] == '\\' && quote == '"':
			i++
		case value[i] == quote:
			return true
		}
	}
	return false
}
