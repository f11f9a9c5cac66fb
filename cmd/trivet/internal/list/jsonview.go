package list

import (
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// records is a watch for programs: a line of JSON per event, as it came. After a lost stream everything comes again, which is
// what a program that keeps the newest of each name wants. A thing that is not wanted any more is shown once more as it is then,
// so that whoever keeps a list can drop it.
type records[T Item] struct {
	session *Session[T]
	// listed holds what was shown and is still there.
	listed map[string]bool
	told   bool
	notice string // of the loss that lasts; empty while there is none
}

func newRecords[T Item](s *Session[T]) *records[T] {
	return &records[T]{session: s, listed: map[string]bool{}}
}

func (*records[T]) begin() {}

func (r *records[T]) event(event Event[T]) error {
	r.notice = ""
	switch event.Type {
	case Present:
		name := event.Item.GetName()
		wanted, was := r.session.Wanted(event.Item), r.listed[name]
		if !wanted {
			delete(r.listed, name)
		} else {
			r.listed[name] = true
		}
		if !wanted && !was {
			return nil
		}
	case Deleted:
		name := event.Item.GetName()
		if !r.listed[name] {
			return nil
		}
		delete(r.listed, name)
	case Bookmark:
		r.told = true
	case Other:
	}
	if event.Message == nil {
		return nil
	}
	line, err := printer.JSONLine(event.Message)
	if err != nil {
		return err
	}
	_, err = r.session.Streams.Out.Write(append(line, '\n'))
	return err
}

func (*records[T]) notes([]string) error { return nil }

func (r *records[T]) lost(notice string) error {
	if notice != r.notice {
		r.session.say(notice)
	}
	r.notice = notice
	return nil
}

func (*records[T]) tick(time.Time) error { return nil }

func (r *records[T]) began() bool { return r.told }
