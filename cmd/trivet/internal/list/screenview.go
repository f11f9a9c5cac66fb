package list

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// redrawPeriod is how often ages are redrawn without changes.
const redrawPeriod = time.Second

// screenView draws the table in place on a terminal.
type screenView[T Item] struct {
	*lister[T]

	store      *store[T]
	screen     *printer.Screen
	bookmarked bool // all items are known, so the table can be drawn
	changed    bool // since the last drawing
	drawTime   time.Time
	// missing, lastNotes and lostNotice are the lines above the table.
	missing, lastNotes []string
	lostNotice         string
}

func newScreenView[T Item](l *lister[T]) *screenView[T] {
	return &screenView[T]{lister: l, store: newStore(l.kind), screen: printer.NewScreen(l.streams)}
}

func (v *screenView[T]) beginAnew() error {
	v.store.beginAnew()
	return nil
}

func (v *screenView[T]) handle(event watch.Event[T]) error {
	v.changed, v.lostNotice = true, ""
	switch event.Type {
	case metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED:
		v.store.put(event.Item)
	case metav1.EventType_EVENT_TYPE_DELETED:
		v.store.remove(event.Item.GetName())
	case metav1.EventType_EVENT_TYPE_BOOKMARK:
		v.missing = printer.Missing(event.Bookmark.GetMissing())
		v.store.bookmark(event)
		v.store.prune()
		if !v.bookmarked && event.EndsInitial() {
			v.bookmarked = true
			return v.draw(time.Now())
		}
	}
	return nil
}

func (v *screenView[T]) setNotes(notes []string) error {
	v.changed, v.lastNotes = v.changed || !slices.Equal(notes, v.lastNotes), notes
	return nil
}

func (v *screenView[T]) disconnected(notice string) error {
	v.lostNotice = notice
	return v.draw(time.Now())
}

func (v *screenView[T]) tick(now time.Time) error {
	if !v.bookmarked || (!v.changed && now.Sub(v.drawTime) < redrawPeriod) {
		return nil
	}
	return v.draw(now)
}

func (v *screenView[T]) synced() bool { return v.bookmarked }

func (v *screenView[T]) close() error { return v.screen.Close() }

func (v *screenView[T]) draw(now time.Time) error {
	v.changed, v.drawTime = false, now
	items := v.onlyWatched(v.store.items())
	header := v.header(items)
	var text strings.Builder
	for _, line := range header {
		text.WriteString(line + "\n")
	}
	if err := v.writeTable(&text, now, items, len(header)); err != nil {
		return err
	}
	return v.screen.Show(text.String())
}

// header returns the lines above the table.
func (v *screenView[T]) header(items []T) []string {
	colors := v.Colors()
	header := []string{colors.Apply(printer.Bold, printer.Sanitize(v.kind.Summary(items)))}
	for _, line := range slices.Concat([]string{v.lostNotice}, v.missing, v.lastNotes) {
		if line != "" {
			header = append(header, colors.Apply(printer.Warning, printer.Sanitize(line)))
		}
	}
	return append(header, "")
}

// writeTable writes the rows that fit below the header. If not all fit, the most severe come first.
func (v *screenView[T]) writeTable(text *strings.Builder, now time.Time, items []T, headerLines int) error {
	if len(items) == 0 {
		return nil
	}
	if err := v.sort(items); err != nil {
		return err
	}
	table, hidden := v.NewTable(v.titles()...), 0
	if !v.NoHeaders {
		headerLines++
	}
	if visible := v.screen.Height() - headerLines - 1; v.screen.Height() > 0 && len(items) > visible { // the cursor has its own line
		shown := max(visible-1, 1)
		if v.SortBy == "" {
			slices.SortStableFunc(items, func(a, b T) int { return cmp.Compare(v.kind.Severity(b), v.kind.Severity(a)) })
		}
		items, hidden = items[:shown], len(items)-shown
	}
	for _, item := range items {
		v.addRow(table, v.kind.Row(now, item))
	}
	if _, err := table.WriteTo(text); err != nil {
		return err
	}
	if hidden > 0 {
		line := "… and " + printer.Count(hidden, "more "+v.kind.Noun)
		text.WriteString(v.Colors().Apply(printer.Dim, line) + "\n")
	}
	return nil
}
