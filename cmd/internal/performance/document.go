package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// What begins and ends a table in the document.
var begins = regexp.MustCompile(`(?m)^<!-- table ([a-z-]+) -->$`)

const ends = "\n<!-- end -->"

// marked returns the names of the document's tables. Each must end, be known and be there once.
func marked(text string) (names []string, err error) {
	for _, at := range begins.FindAllStringSubmatchIndex(text, -1) {
		name := text[at[2]:at[3]]
		switch {
		case tables[name] == nil:
			return nil, fmt.Errorf("nothing makes a table %s", name)
		case slices.Contains(names, name):
			return nil, fmt.Errorf("table %s is there twice", name)
		}
		if _, err := fill(text, name, ""); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// fill returns the document with another text for one of its tables.
func fill(text, name, table string) (string, error) {
	begin := fmt.Sprintf("<!-- table %s -->\n", name)
	before, rest, found := strings.Cut(text, begin)
	if !found {
		return "", fmt.Errorf("there is no line %q", strings.TrimSpace(begin))
	}
	old, after, found := strings.Cut("\n"+rest, ends)
	if !found || begins.MatchString(old) {
		return "", fmt.Errorf("table %s has no end", name)
	}
	return before + begin + strings.TrimSuffix(table, "\n") + ends + after, nil
}

// A table is rows of cells, the first of which is the header.
type table [][]string

func (t *table) row(cells ...string) { *t = append(*t, cells) }

// String returns the table in Markdown.
func (t table) String() string {
	var b strings.Builder
	for i, cells := range t {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat(" --- |", len(cells)) + "\n")
		}
	}
	return b.String()
}
