package checkpoint

import (
	"encoding/binary"
	"strings"
	"time"
)

const (
	nameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-."
	bootCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + nameCharacters + "_:"
)

// reader takes a checkpoint apart. After the first thing that is wrong it returns nothing but zeros.
type reader struct {
	rest  []byte
	wrong string
}

func (r *reader) fail(what string) {
	if r.wrong == "" {
		r.wrong, r.rest = what, nil
	}
}

func (r *reader) classes() []string {
	n := r.number(maxClasses)
	var classes []string
	for range n {
		class := r.text(maxClass, nameCharacters)
		if len(classes) > 0 && class <= classes[len(classes)-1] {
			r.fail("classes out of order")
		}
		classes = append(classes, class)
	}
	return classes
}

func (r *reader) entries(classes []string) []Entry {
	// Each entry takes more bytes than one, so the number cannot make us allocate more than was sent.
	n := r.number(uint64(len(r.rest)))
	var entries []Entry
	var last Entry
	for range n {
		e := r.entry(classes, last)
		if r.wrong != "" {
			return nil
		}
		if len(entries) > 0 && compare(last, e) >= 0 {
			r.fail("holders out of order")
			return nil
		}
		entries, last = append(entries, e), e
	}
	return entries
}

func (r *reader) entry(classes []string, last Entry) Entry {
	place := r.number(maxClasses)
	same := r.number(uint64(len(last.Name)))
	if r.wrong == "" && place >= uint64(len(classes)) {
		r.fail("an unknown class")
	}
	if r.wrong != "" {
		return Entry{}
	}
	e := Entry{Class: classes[place], Name: last.Name[:same] + r.remainder(maxName-int(same))}
	if e.Name == "" {
		r.fail("a holder without a name")
	}
	e.Boot = r.text(maxBoot, bootCharacters)
	e.Silence = time.Duration(r.number(uint64(maxSilence/tick))) * tick
	return e
}

// number reads a number that is limit at most.
func (r *reader) number(limit uint64) uint64 {
	if r.wrong != "" {
		return 0
	}
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.fail("a number is cut off")
		return 0
	}
	if n > limit {
		r.fail("a number is too large")
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

// text reads one to limit of the characters.
func (r *reader) text(limit int, characters string) string {
	text := r.some(limit)
	if r.wrong == "" && (text == "" || strings.Trim(text, characters) != "") {
		r.fail("a text has characters that it cannot have")
	}
	return text
}

// remainder reads the end of a name, which may be empty.
func (r *reader) remainder(limit int) string {
	text := r.some(limit)
	if strings.Trim(text, nameCharacters) != "" {
		r.fail("a name has characters that it cannot have")
	}
	return text
}

func (r *reader) some(limit int) string {
	n := r.number(uint64(limit))
	if n > uint64(len(r.rest)) {
		r.fail("a text is cut off")
		return ""
	}
	text := string(r.rest[:n])
	r.rest = r.rest[n:]
	return text
}
