package list

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// framePeriod is how often ages are drawn anew while nothing changes.
const framePeriod = time.Second

// frames is a watch in the place of a terminal.
type frames[T Item] struct {
	session *Session[T]
	fleet   *fleet[T]
	screen  *printer.Screen
	// told is whether everything is known, so that it can be drawn.
	told bool
	// changed is whether something is to be drawn that was not yet.
	changed bool
	drawn   time.Time
	// missing, noted and notice stand above the table.
	missing, noted []string
	notice         string
}

func newFrames[T Item](s *Session[T]) *frames[T] {
	return &frames[T]{session: s, fleet: newFleet(s.Kind), screen: printer.NewScreen(s.Streams)}
}

func (f *frames[T]) begin() { f.fleet.begin() }

func (f *frames[T]) event(event Event[T]) error {
	f.changed, f.notice = true, ""
	switch event.Type {
	case Present:
		f.fleet.put(event.Item)
	case Deleted:
		f.fleet.remove(event.Item.GetName())
	case Bookmark:
		f.missing = absences(event.Missing)
		if len(event.Missing) == 0 {
			f.fleet.settle()
		}
		if !f.told {
			f.told = true
			return f.draw(time.Now())
		}
	case Other:
	}
	return nil
}

func (f *frames[T]) notes(notes []string) error {
	f.changed, f.noted = f.changed || !slices.Equal(notes, f.noted), notes
	return nil
}

func (f *frames[T]) lost(notice string) error {
	f.notice = notice
	return f.draw(time.Now())
}

func (f *frames[T]) tick(now time.Time) error {
	if !f.told || (!f.changed && now.Sub(f.drawn) < framePeriod) {
		return nil
	}
	return f.draw(now)
}

func (f *frames[T]) began() bool { return f.told }

func (f *frames[T]) draw(now time.Time) error {
	f.changed, f.drawn = false, now
	items := wanted(f.session, f.fleet.items())
	head := f.head(items)
	var text strings.Builder
	for _, line := range head {
		text.WriteString(line + "\n")
	}
	if err := f.body(&text, now, items, len(head)); err != nil {
		return err
	}
	return f.screen.Show(text.String())
}

// head is what stands above the table.
func (f *frames[T]) head(items []T) []string {
	ink := f.session.Streams.Ink(f.session.Color)
	head := []string{ink.Dye(printer.Strong, printer.Plain(f.session.Kind.Tally(items)))}
	for _, line := range slices.Concat([]string{f.notice}, f.missing, f.noted) {
		if line != "" {
			head = append(head, ink.Dye(printer.Fair, printer.Plain(line)))
		}
	}
	return append(head, "")
}

// body is the table, as far as there is room below the head. When not all fit, those that need a look come first.
func (f *frames[T]) body(text *strings.Builder, now time.Time, items []T, above int) error {
	if len(items) == 0 {
		return nil
	}
	rows, more := f.session.newTable(), 0
	if !f.session.NoHeaders {
		f.session.addTitles(rows)
		above++
	}
	if room := f.screen.Height() - above - 1; f.screen.Height() > 0 && len(items) > room { // the cursor rests on a line of its own
		shown := max(room-1, 1)
		slices.SortStableFunc(items, func(a, b T) int { return cmp.Compare(f.session.Kind.Concern(b), f.session.Kind.Concern(a)) })
		items, more = items[:shown], len(items)-shown
	}
	for _, item := range items {
		f.session.addRow(rows, f.session.Kind.Row(now, item))
	}
	if _, err := rows.WriteTo(text); err != nil {
		return err
	}
	if more > 0 {
		text.WriteString(f.session.Streams.Ink(f.session.Color).Dye(printer.Faint, "… and "+printer.Count(more, "more "+f.session.Kind.Noun)) + "\n")
	}
	return nil
}
