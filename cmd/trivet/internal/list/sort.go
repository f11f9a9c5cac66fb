package list

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// sortKey returns the text by which --sort-by compares an item: the cell of a column, or the text
// of a JSONPath over the item's JSON.
type sortKey[T Item] func(now time.Time, item T) (string, error)

// checkSort returns an error for a --sort-by that names neither a column nor a JSONPath.
func checkSort(by string, columns []Column) error {
	if by == "" || columnIndex(by, columns) >= 0 {
		return nil
	}
	if !isPath(by) {
		return fmt.Errorf("--sort-by=%q: must be a column, one of %s, or a JSONPath of an item, such as {.name}", by, strings.Join(titles(columns), ", "))
	}
	if _, err := printer.JSONPath(template(by), []byte("{}")); err != nil {
		return fmt.Errorf("--sort-by=%q: %w", by, err)
	}
	return nil
}

func isPath(by string) bool { return strings.HasPrefix(by, ".") || strings.Contains(by, "{") }

// template returns a JSONPath with braces, which kubectl's --sort-by does not require either.
func template(by string) string {
	if strings.Contains(by, "{") {
		return by
	}
	return "{" + by + "}"
}

// columnIndex returns the index of a column, whose title may be written in lower case; -1 for none.
func columnIndex(by string, columns []Column) int {
	return slices.IndexFunc(columns, func(column Column) bool { return strings.EqualFold(column.Title, by) })
}

func titles(columns []Column) []string {
	var all []string
	for _, column := range columns {
		all = append(all, column.Title)
	}
	return all
}

func newSortKey[T Item](by string, kind Kind[T]) sortKey[T] {
	if index := columnIndex(by, kind.Columns); index >= 0 {
		return func(now time.Time, item T) (string, error) { return kind.Row(now, item)[index].Text, nil }
	}
	return func(_ time.Time, item T) (string, error) {
		encoded, err := printer.JSONLine(item)
		if err != nil {
			return "", err
		}
		text, err := printer.JSONPath(template(by), encoded)
		return string(text), err
	}
}

// sort orders items by --sort-by. Without it, and for equal keys, the order stays.
func (l *lister[T]) sort(items []T) error {
	if l.SortBy == "" {
		return nil
	}
	type keyed struct {
		key  sortable
		item T
	}
	now, key := time.Now(), newSortKey(l.SortBy, l.kind)
	all := make([]keyed, len(items))
	for i, item := range items {
		text, err := key(now, item)
		if err != nil {
			return err
		}
		all[i] = keyed{parseSortable(text), item}
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return a.key.compare(b.key) })
	for i := range all {
		items[i] = all[i].item
	}
	return nil
}

// sortable is a text with the number in it.
type sortable struct {
	class  sortClass
	number float64
	text   string
}

type sortClass int

// Numbers precede other texts; an unknown value is last.
const (
	numeric sortClass = iota
	textual
	unknown
)

func (a sortable) compare(b sortable) int {
	return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.number, b.number), compareNatural(a.text, b.text))
}

var (
	leadingNumber = regexp.MustCompile(`^[-+]?[0-9]+(\.[0-9]+)?(%|/[0-9]+| of [0-9]+)?$`)
	oneDuration   = regexp.MustCompile(`^(in )?([0-9.]+(d|h|ms|m|s|µs))+( ago)?$`)
	durationPart  = regexp.MustCompile(`([0-9.]+)(d|h|ms|m|s|µs)`)
)

// parseSortable recognizes numbers, "5%", "3/4", times, and durations as [printer.Age] and the API
// write them. What was "5s ago" precedes what is "in 5s".
func parseSortable(text string) sortable {
	text = strings.TrimSpace(text)
	switch {
	case text == "" || text == "-" || text == "never":
		return sortable{class: unknown, text: text}
	case text == "now":
		return sortable{class: numeric}
	case leadingNumber.MatchString(text):
		number, _ := strconv.ParseFloat(regexp.MustCompile(`^[-+]?[0-9.]+`).FindString(text), 64)
		return sortable{class: numeric, number: number, text: text}
	case oneDuration.MatchString(text):
		number := seconds(text)
		if strings.HasSuffix(text, " ago") {
			number = -number
		}
		return sortable{class: numeric, number: number}
	}
	if moment, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return sortable{class: numeric, number: float64(moment.UnixNano()) / 1e9}
	}
	return sortable{class: textual, text: text}
}

func seconds(text string) float64 {
	units := map[string]float64{"d": 86400, "h": 3600, "m": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}
	var sum float64
	for _, part := range durationPart.FindAllStringSubmatch(text, -1) {
		number, _ := strconv.ParseFloat(part[1], 64)
		sum += number * units[part[2]]
	}
	return sum
}

// compareNatural compares runs of digits by their number, so that node-9 precedes node-10.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		digitsA, digitsB := leadingDigits(a), leadingDigits(b)
		if digitsA == "" || digitsB == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		a, b = a[len(digitsA):], b[len(digitsB):]
		digitsA, digitsB = strings.TrimLeft(digitsA, "0"), strings.TrimLeft(digitsB, "0")
		if order := cmp.Or(cmp.Compare(len(digitsA), len(digitsB)), cmp.Compare(digitsA, digitsB)); order != 0 {
			return order
		}
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(text string) string {
	return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
}
