package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"
)

// The stored format, in this order:
//   - the version, one byte;
//   - the number of classes, and their names in order;
//   - the number of entries, and the entries ordered by class and name. An entry is the index of
//     its class, the number of bytes that its name shares with the previous name, the rest of the
//     name, the boot, and the silence in tenths of a second;
//   - a CRC-32C of all bytes before it, big-endian.
//
// Numbers are unsigned varints. A text is its length and its bytes.

const (
	// MaxBytes bounds a checkpoint. It is far below the 1.5 MiB that etcd accepts.
	MaxBytes = 512 << 10

	version     = 1
	silenceUnit = 100 * time.Millisecond
	maxSilence  = 10 * 365 * 24 * time.Hour
	// The limits of the API.
	maxClasses = 256
	maxClass   = 63
	maxName    = 253
	maxBoot    = 64
	// maxNumbers is more bytes than the numbers of one entry take.
	maxNumbers = 16

	nameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-."
	bootCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + nameCharacters + "_:"
)

// ErrUnreadable is wrapped by the errors of Decode.
var ErrUnreadable = errors.New("the checkpoint cannot be read")

// Encode returns the stored form of entries, at most one for each holder, in any order. Silences
// are rounded down to tenths of a second.
func Encode(entries []Entry) []byte {
	entries = slices.SortedFunc(slices.Values(entries), compare)
	classes := classesOf(entries)
	data := []byte{version}
	data = binary.AppendUvarint(data, uint64(len(classes)))
	for _, class := range classes {
		data = appendText(data, class)
	}
	data = binary.AppendUvarint(data, uint64(len(entries)))
	var last Entry
	for _, e := range entries {
		class, _ := slices.BinarySearch(classes, e.Class)
		shared := sharedPrefix(last.Name, e.Name)
		data = binary.AppendUvarint(data, uint64(class))
		data = binary.AppendUvarint(data, uint64(shared))
		data = appendText(data, e.Name[shared:])
		data = appendText(data, e.Boot)
		data = binary.AppendUvarint(data, uint64(min(max(e.Silence, 0), maxSilence)/silenceUnit))
		last = e
	}
	return binary.BigEndian.AppendUint32(data, checksum(data))
}

func classesOf(entries []Entry) []string {
	var classes []string
	for _, e := range entries {
		if n := len(classes); n == 0 || classes[n-1] != e.Class {
			classes = append(classes, e.Class)
		}
	}
	return classes
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func appendText(data []byte, text string) []byte {
	return append(binary.AppendUvarint(data, uint64(len(text))), text...)
}

func checksum(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// maxSize returns an upper bound of the bytes that the entry takes.
func (e Entry) maxSize() int { return maxNumbers + len(e.Class) + len(e.Name) + len(e.Boot) }

// Decode reads what Encode wrote. After an error, which wraps ErrUnreadable, there are no entries.
func Decode(data []byte) ([]Entry, error) {
	if len(data) < 1+4 || len(data) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrUnreadable, len(data))
	}
	if data[0] != version {
		return nil, fmt.Errorf("%w: version %d, this replica knows %d", ErrUnreadable, data[0], version)
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if checksum(body) != sum {
		return nil, fmt.Errorf("%w: wrong checksum", ErrUnreadable)
	}
	d := decoder{rest: body[1:]}
	entries := d.entries(d.classes())
	if d.problem == "" && len(d.rest) > 0 {
		d.fail("bytes after the last entry")
	}
	if d.problem != "" {
		return nil, fmt.Errorf("%w: %s", ErrUnreadable, d.problem)
	}
	return entries, nil
}

// decoder reads a checkpoint. After the first problem all its methods return zero values.
type decoder struct {
	rest    []byte
	problem string
}

func (d *decoder) fail(problem string) {
	if d.problem == "" {
		d.problem, d.rest = problem, nil
	}
}

func (d *decoder) classes() []string {
	n := d.number(maxClasses)
	var classes []string
	for range n {
		class := d.text(maxClass, nameCharacters)
		if len(classes) > 0 && class <= classes[len(classes)-1] {
			d.fail("classes out of order")
		}
		classes = append(classes, class)
	}
	return classes
}

func (d *decoder) entries(classes []string) []Entry {
	// An entry takes more than one byte, so the number cannot cause an allocation larger than the
	// data.
	n := d.number(uint64(len(d.rest)))
	var entries []Entry
	var last Entry
	for range n {
		e := d.entry(classes, last)
		if d.problem != "" {
			return nil
		}
		if len(entries) > 0 && compare(last, e) >= 0 {
			d.fail("holders out of order")
			return nil
		}
		entries, last = append(entries, e), e
	}
	return entries
}

func (d *decoder) entry(classes []string, last Entry) Entry {
	class := d.number(maxClasses)
	shared := d.number(uint64(len(last.Name)))
	if d.problem == "" && class >= uint64(len(classes)) {
		d.fail("unknown class")
	}
	if d.problem != "" {
		return Entry{}
	}
	e := Entry{Class: classes[class], Name: last.Name[:shared] + d.optionalText(maxName-int(shared), nameCharacters)}
	if e.Name == "" {
		d.fail("holder without a name")
	}
	e.Boot = d.text(maxBoot, bootCharacters)
	e.Silence = time.Duration(d.number(uint64(maxSilence/silenceUnit))) * silenceUnit
	return e
}

// number reads a number, at most limit.
func (d *decoder) number(limit uint64) uint64 {
	if d.problem != "" {
		return 0
	}
	n, size := binary.Uvarint(d.rest)
	if size <= 0 {
		d.fail("truncated number")
		return 0
	}
	if n > limit {
		d.fail("number too large")
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

// text reads a text of 1 to limit of the given characters.
func (d *decoder) text(limit int, characters string) string {
	text := d.optionalText(limit, characters)
	if text == "" {
		d.fail("text is empty")
	}
	return text
}

// optionalText reads a text of at most limit of the given characters.
func (d *decoder) optionalText(limit int, characters string) string {
	n := d.number(uint64(limit))
	if n > uint64(len(d.rest)) {
		d.fail("truncated text")
		return ""
	}
	text := string(d.rest[:n])
	if strings.Trim(text, characters) != "" {
		d.fail("text has invalid characters")
		return ""
	}
	d.rest = d.rest[n:]
	return text
}
