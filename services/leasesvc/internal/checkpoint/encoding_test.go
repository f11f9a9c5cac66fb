package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
)

func silent(name string, silence time.Duration) checkpoint.Entry {
	return checkpoint.Entry{Class: "node", Name: name, Boot: "b-1", Silence: silence}
}

func TestEncode_DecodesInOrder(t *testing.T) {
	f, b := silent("rack-1-a", 21*time.Second), silent("rack-1-b.example", 3*time.Hour+123*time.Millisecond)
	c := checkpoint.Entry{Class: "agent", Name: "rack-1-a", Boot: strings.Repeat("Z", 64), Silence: time.Second}
	given := []checkpoint.Entry{b, c, f}
	before := slices.Clone(given)
	got, err := checkpoint.Decode(checkpoint.Encode(given))
	if err != nil {
		t.Fatal(err)
	}
	b.Silence = 3*time.Hour + 100*time.Millisecond
	if diff := cmp.Diff([]checkpoint.Entry{c, f, b}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, given); diff != "" {
		t.Errorf("the argument was changed (-before +after):\n%s", diff)
	}
	if empty, err := checkpoint.Decode(checkpoint.Encode(nil)); err != nil || len(empty) != 0 {
		t.Errorf("no entries are decoded as %v, error %v", empty, err)
	}
}

// Similar names are compressed; boots are not.
func TestEncode_IsCompact(t *testing.T) {
	var entries []checkpoint.Entry
	for i := range 1000 {
		entries = append(entries, checkpoint.Entry{
			Class: "node", Name: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/256, i%256),
			Boot: fmt.Sprintf("5f0c7a52-91c0-4bd2-b2ff-%012d", i), Silence: time.Duration(i) * time.Minute,
		})
	}
	if got := len(checkpoint.Encode(entries)) / len(entries); got > 80 {
		t.Errorf("%d bytes for each holder, want 80 at most", got)
	}
}

// sealed appends a valid checksum.
func sealed(body ...byte) []byte {
	return binary.BigEndian.AppendUint32(slices.Clone(body), crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}

func TestDecode_InvalidDataFails(t *testing.T) {
	good := checkpoint.Encode([]checkpoint.Entry{silent("n1", time.Minute), silent("n2", time.Hour)})
	future := sealed(append([]byte{2}, good[1:len(good)-4]...)...)
	huge := binary.AppendUvarint([]byte{1, 1, 4, 'n', 'o', 'd', 'e'}, 1<<60)
	for what, data := range map[string][]byte{
		"empty":               nil,
		"json":                []byte(`{"version":1}`),
		"a future version":    future,
		"larger than allowed": make([]byte, checkpoint.MaxBytes+1),
		"a billion entries":   sealed(huge...),
		"missing classes":     sealed(1, 200, 1),
		"unknown class":       sealed(1, 1, 4, 'n', 'o', 'd', 'e', 1, 7, 0, 1, 'a', 1, 'b', 1),
		"no class":            sealed(1, 0, 1, 0, 0, 1, 'a', 1, 'b', 1),
		"no name":             sealed(1, 1, 4, 'n', 'o', 'd', 'e', 1, 0, 0, 0, 1, 'b', 1),
		"no boot":             sealed(1, 1, 4, 'n', 'o', 'd', 'e', 1, 0, 0, 1, 'a', 0, 1),
		"a control character": sealed(1, 1, 4, 'n', 'o', 'd', 'e', 1, 0, 0, 1, 7, 1, 'b', 1),
		"duplicate holder":    sealed(1, 1, 4, 'n', 'o', 'd', 'e', 2, 0, 0, 1, 'a', 1, 'b', 1, 0, 1, 0, 1, 'b', 1),
		"missing entry":       sealed(1, 1, 4, 'n', 'o', 'd', 'e', 2, 0, 0, 1, 'a', 1, 'b', 1),
		"extra bytes":         sealed(1, 1, 4, 'n', 'o', 'd', 'e', 0, 0, 0, 1, 'a', 1, 'b', 1),
		"excessive silence":   sealed(binary.AppendUvarint([]byte{1, 1, 4, 'n', 'o', 'd', 'e', 1, 0, 0, 1, 'a', 1, 'b'}, 1<<62)...),
		"endless number":      sealed(1, 1, 4, 'n', 'o', 'd', 'e', 0x80, 0x80, 0x80),
	} {
		if got, err := checkpoint.Decode(data); !errors.Is(err, checkpoint.ErrUnreadable) || got != nil {
			t.Errorf("%s: %v, error %v", what, got, err)
		}
	}
	for cut := range good {
		if got, err := checkpoint.Decode(good[:cut]); err == nil {
			t.Errorf("truncated to %d bytes: %v without an error", cut, got)
		}
	}
	for place := range good {
		bad := slices.Clone(good)
		bad[place] ^= 0x20
		if got, err := checkpoint.Decode(bad); err == nil {
			t.Errorf("wrong bit in byte %d: %v without an error", place, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(checkpoint.Encode(nil), false)
	f.Add(checkpoint.Encode([]checkpoint.Entry{silent("n1", time.Minute), silent("n2", time.Hour)}), false)
	f.Add([]byte{1, 1, 4, 'n', 'o', 'd', 'e', 1, 0, 0, 1, 'a', 1, 'b', 1}, true)
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal { // otherwise nearly all inputs fail at the checksum
			data = sealed(data...)
		}
		given := bytes.Clone(data)
		entries, err := checkpoint.Decode(data)
		if !bytes.Equal(given, data) {
			t.Fatal("the argument was changed")
		}
		if err != nil {
			if !errors.Is(err, checkpoint.ErrUnreadable) || entries != nil {
				t.Fatalf("%v, error %v", entries, err)
			}
			return
		}
		again, err := checkpoint.Decode(checkpoint.Encode(entries))
		if err != nil {
			t.Fatalf("%v cannot be decoded again: %v", entries, err)
		}
		if diff := cmp.Diff(entries, again); diff != "" {
			t.Fatalf("(-first +again):\n%s", diff)
		}
	})
}
