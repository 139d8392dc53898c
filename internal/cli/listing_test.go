package cli_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/internal/cli"
)

type fruit struct {
	name string
	n    int
}

var fruits = cli.Listing[fruit]{
	Thing: "fruit",
	Columns: []cli.Column[fruit]{
		{Name: "NAME", Cell: func(f fruit) string { return f.name }, Tone: func(f fruit) cli.Tone {
			if f.n == 0 {
				return cli.Bad
			}
			return cli.Plain
		}},
		{Name: "IN STOCK", Cell: func(f fruit) string { return fmt.Sprint(f.n) }, Order: func(a, b fruit) int { return cmp.Compare(a.n, b.n) }},
	},
	Totals: func(all []fruit) string {
		sum := 0
		for _, f := range all {
			sum += f.n
		}
		return fmt.Sprintf("%d in stock", sum)
	},
}

var basket = []fruit{{"pear", 9}, {"apple", 10}, {"süßkirsche", 0}, {"", 9}}

func TestATableIsShownAsItIsWanted(t *testing.T) {
	for name, test := range map[string]struct {
		view cli.View
		want string
	}{
		"all":                     {cli.View{}, "NAME        IN STOCK\npear        9\napple       10\nsüßkirsche  0\n-           9\n"},
		"no legend":               {cli.View{NoLegend: true}, "pear        9\napple       10\nsüßkirsche  0\n-           9\n"},
		"columns":                 {cli.View{Columns: []string{"in_stock", "name"}, Limit: 1}, "IN STOCK  NAME\n9         pear\n1 of 4 fruits: 28 in stock\n"},
		"a column twice":          {cli.View{Columns: []string{"NAME", "Name"}, Limit: 1}, "NAME  NAME\npear  pear\n1 of 4 fruits: 28 in stock\n"},
		"sorted by text":          {cli.View{Sort: "name", NoLegend: true}, "-           9\napple       10\npear        9\nsüßkirsche  0\n"},
		"sorted by number":        {cli.View{Sort: "in-stock", NoLegend: true}, "süßkirsche  0\npear        9\n-           9\napple       10\n"},
		"reversed":                {cli.View{Reverse: true, NoLegend: true}, "-           9\nsüßkirsche  0\napple       10\npear        9\n"},
		"the largest":             {cli.View{Sort: "in stock", Reverse: true, Limit: 1}, "NAME   IN STOCK\napple  10\n1 of 4 fruits: 28 in stock\n"},
		"more than there are":     {cli.View{Limit: 9, Columns: []string{"name"}}, "NAME\npear\napple\nsüßkirsche\n-\n4 of 4 fruits: 28 in stock\n"},
		"a limit without legend":  {cli.View{Limit: 1, NoLegend: true}, "pear  9\n"},
		"colours, which align as": {cli.View{Color: true, Sort: "in stock", Limit: 2, Columns: []string{"name", "in stock"}}, "\x1b[1mNAME\x1b[0m        \x1b[1mIN STOCK\x1b[0m\n\x1b[31msüßkirsche\x1b[0m  0\npear        9\n2 of 4 fruits: 28 in stock\n"},
	} {
		var b strings.Builder
		if err := cli.CheckView(test.view, fruits.Names()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := fruits.Print(&b, test.view, basket); err != nil || b.String() != test.want {
			t.Errorf("%s: %v\n%q, want\n%q", name, err, b.String(), test.want)
		}
	}
	if basket[0].name != "pear" {
		t.Error("the rows were changed")
	}
}

func TestAViewThatNamesNoColumnIsRefusedAndToldWhichThereAre(t *testing.T) {
	for _, test := range []struct {
		view cli.View
		says string
	}{
		{cli.View{Sort: "nmae"}, `no column "nmae": is it name?`},
		{cli.View{Columns: []string{"name", "colour"}}, `no column "colour": is it name, in_stock?`},
		{cli.View{Limit: -1}, "--limit -1"},
	} {
		if err := cli.CheckView(test.view, fruits.Names()); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v, want %q", test.view, err, test.says)
		}
	}
}

func TestWhatOthersWroteCannotSteerATerminalOrBreakATable(t *testing.T) {
	var b strings.Builder
	if err := fruits.Print(&b, cli.View{NoLegend: true, Color: true}, []fruit{{"a\x1b[2J\nb\tc", 1}}); err != nil || b.String() != `a\x1b[2J\nb\tc  1`+"\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestALiftedListingShowsItsRowsAsTheOther(t *testing.T) {
	type crate struct {
		fruit
		from string
	}
	l := cli.Lift(fruits, func(c crate) fruit { return c.fruit })
	l.Columns = append(l.Columns, cli.Column[crate]{Name: "FROM", Cell: func(c crate) string { return c.from }})
	var b strings.Builder
	view := cli.View{Sort: "in_stock", Reverse: true, Limit: 1, Color: true, Columns: []string{"name", "from"}}
	if err := l.Print(&b, view, []crate{{fruit{"pear", 9}, "afar"}, {fruit{"apple", 10}, "here"}, {fruit{"plum", 0}, ""}}); err != nil || b.String() != "\x1b[1mNAME\x1b[0m   \x1b[1mFROM\x1b[0m\napple  here\n1 of 3 fruits: 19 in stock\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	b.Reset()
	if l.Print(&b, cli.View{NoLegend: true, Color: true, Columns: []string{"name"}}, []crate{{fruit{"plum", 0}, ""}}); b.String() != "\x1b[31mplum\x1b[0m\n" {
		t.Errorf("%q", b.String())
	}
}
