package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"
)

// What is stored is: the version, one byte; the number of classes and their names; the number of entries; the entries, ordered
// by class and name: the place of the class, how many bytes the name shares with the one before, the rest of the name, the
// boot, the silence in tenths of a second; and a CRC-32C of all that. Numbers are unsigned varints, texts have their length
// before them.

const (
	// MaxBytes bounds what is stored, far below the 1.5 MiB that etcd takes: all shards are written by turns.
	MaxBytes = 512 << 10

	version    = 1
	tick       = 100 * time.Millisecond
	maxSilence = 10 * 365 * 24 * time.Hour
	// What the API allows.
	maxClasses = 256
	maxClass   = 63
	maxName    = 253
	maxBoot    = 64
	// frame is more than all numbers of one entry take.
	frame = 16
)

// ErrUnreadable is wrapped by the errors of Decode.
var ErrUnreadable = errors.New("the checkpoint cannot be read")

// Encode returns entries, of which there may be one for each holder, as they are stored. Their order does not matter; silences
// are cut to tenths of a second.
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
		place, _ := slices.BinarySearch(classes, e.Class)
		same := shared(last, e)
		data = binary.AppendUvarint(data, uint64(place))
		data = binary.AppendUvarint(data, uint64(same))
		data = appendText(data, e.Name[same:])
		data = appendText(data, e.Boot)
		data = binary.AppendUvarint(data, uint64(min(max(e.Silence, 0), maxSilence)/tick))
		last = e
	}
	return binary.BigEndian.AppendUint32(data, checksum(data))
}

// Decode reads what Encode wrote. Its errors wrap ErrUnreadable; with one there are no entries.
func Decode(data []byte) ([]Entry, error) {
	if len(data) < 1+4 || len(data) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrUnreadable, len(data))
	}
	if data[0] != version {
		return nil, fmt.Errorf("%w: version %d, this replica knows %d", ErrUnreadable, data[0], version)
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if checksum(body) != sum {
		return nil, fmt.Errorf("%w: the checksum does not fit", ErrUnreadable)
	}
	r := reader{rest: body[1:]}
	entries := r.entries(r.classes())
	if r.wrong == "" && len(r.rest) > 0 {
		r.fail("bytes are left over")
	}
	if r.wrong != "" {
		return nil, fmt.Errorf("%w: %s", ErrUnreadable, r.wrong)
	}
	return entries, nil
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

// shared is how many bytes the name has in common with the one before.
func shared(last, next Entry) int {
	n := 0
	for n < len(last.Name) && n < len(next.Name) && last.Name[n] == next.Name[n] {
		n++
	}
	return n
}

func appendText(data []byte, text string) []byte {
	return append(binary.AppendUvarint(data, uint64(len(text))), text...)
}

func checksum(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// size is at most what an entry takes.
func (e Entry) size() int { return frame + len(e.Class) + len(e.Name) + len(e.Boot) }
