package rangestore

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

// stored returns a value as kube-apiserver writes it, without the code under test.
func stored(t interface{ Fatal(...any) }, object corev1.RangeAllocation) []byte {
	raw, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"}, Raw: raw}
	encoded, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), encoded...)
}

func ports(data ...byte) corev1.RangeAllocation {
	return corev1.RangeAllocation{Range: "30000-32767", Data: data}
}

func TestWith_ChangesOnlyTheBitmap(t *testing.T) {
	object := ports(0x02, 0x81)
	object.ObjectMeta = metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"b": "2", "a": "1"}}
	raw := stored(t, object)
	before, err := Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	if before.Text() != "30000-32767" || !bytes.Equal(before.Data(), []byte{0x02, 0x81}) {
		t.Errorf("read %q %x", before.Text(), before.Data())
	}
	after, err := before.With([]byte{0x01, 0x00, 0x83}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	object.Data = []byte{0x01, 0x00, 0x83}
	if want := stored(t, object); !bytes.Equal(after, want) {
		t.Errorf("encoded = %x\nwant      %x", after, want)
	}
	if again, err := before.Encode(); err != nil || !bytes.Equal(again, raw) {
		t.Errorf("what was changed is %x, %v, want it as it was: %x", again, err, raw)
	}
}

func TestDecode_JSONIsWrittenBackAsJSON(t *testing.T) {
	r, err := Decode([]byte(` {"kind":"RangeAllocation", "apiVersion":"v1","data":"AoE=","range":"30000-32767","metadata":{"creationTimestamp":null}}`))
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := r.With([]byte{0x81}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatal(err)
	}
	if got["kind"] != "RangeAllocation" || got["apiVersion"] != "v1" || got["range"] != "30000-32767" || got["data"] != "gQ==" {
		t.Errorf("encoded = %s", encoded)
	}
}

func TestDecode_RejectsPartlyUnknownValues(t *testing.T) {
	whole := stored(t, ports(0x02, 0x81))
	service := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	serviceRaw, err := service.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	inner, err := (&corev1.RangeAllocation{Range: "30000-32767"}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	future := runtime.Unknown{
		TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"}, Raw: append(inner, 0x4a, 0x01, 'x'), // field 9
	}
	futureRaw, err := future.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]byte{
		"nothing":            nil,
		"magic alone":        []byte("k8s\x00"),
		"text":               []byte("30000-32767"),
		"encrypted":          []byte("k8s:enc:aescbc:v1:key1:0123"),
		"another kind":       append([]byte("k8s\x00"), serviceRaw...),
		"a field too many":   append([]byte("k8s\x00"), futureRaw...),
		"trailing bytes":     append(bytes.Clone(whole), 0x4a, 0x01, 'x'),
		"JSON of a List":     []byte(`{"kind":"List","apiVersion":"v1"}`),
		"JSON without kind":  []byte(`{"range":"30000-32767"}`),
		"JSON, unknown part": []byte(`{"kind":"RangeAllocation","apiVersion":"v1","range":"1-2","data":"AQ==","sparse":true}`),
		"JSON, twice":        []byte(`{"kind":"RangeAllocation","apiVersion":"v1","range":"1-2","range":"1-3","data":"AQ=="}`),
		"JSON, cut":          []byte(`{"kind":"RangeAllocation","apiVersion":"v1","range":"1-2"`),
		"JSON, deep":         []byte(strings.Repeat(`{"metadata":`, 20_000)),
	}
	for i := range whole {
		cases["cut after "+big.NewInt(int64(i)).String()] = whole[:i]
	}
	for name, raw := range cases {
		if r, err := Decode(raw); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: decoded %q, %v, want %v", name, r.Text(), err, ErrUnreadable)
		}
	}
}

func TestEncode_RejectsTheZeroRange(t *testing.T) {
	if encoded, err := (Range{}).Encode(); err == nil {
		t.Errorf("encoded %x", encoded)
	}
}

// Any value of kube-apiserver is written back byte for byte, and another bitmap is written as
// kube-apiserver would.
func TestRange_DecodeAndEncodeAreInverse(t *testing.T) {
	bitmap := rapid.Custom(func(t *rapid.T) []byte {
		number := new(big.Int)
		for _, i := range rapid.SliceOf(rapid.IntRange(0, 70_000)).Draw(t, "allocated") {
			number.SetBit(number, i, 1)
		}
		return number.Bytes()
	})
	rapid.Check(t, func(t *rapid.T) {
		object := corev1.RangeAllocation{Range: rapid.String().Draw(t, "range"), Data: bitmap.Draw(t, "before")}
		raw := stored(t, object)
		r, err := Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := r.Encode(); err != nil || !bytes.Equal(raw, again) {
			t.Fatalf("came back as %x, %v, want %x", again, err, raw)
		}
		object.Data = bitmap.Draw(t, "after")
		if encoded, err := r.With(object.Data).Encode(); err != nil || !bytes.Equal(encoded, stored(t, object)) {
			t.Fatalf("changed to %x, %v, want %x", encoded, err, stored(t, object))
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(stored(f, ports()))
	f.Add(stored(f, ports(0x02, 0x81)))
	f.Add(stored(f, corev1.RangeAllocation{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Range: "fd00::/108"}))
	f.Add([]byte(`{"kind":"RangeAllocation","apiVersion":"v1","range":"1-2","data":"AQ=="}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := Decode(raw)
		if err != nil {
			if !errors.Is(err, ErrUnreadable) {
				t.Fatalf("error %v does not wrap %v", err, ErrUnreadable)
			}
			return
		}
		encoded, err := r.Encode()
		if err != nil {
			t.Fatalf("read and not writable: %v", err)
		}
		if r.envelope != nil && !bytes.Equal(raw, encoded) {
			t.Fatalf("came back as %x, want %x", encoded, raw)
		}
		again, err := Decode(encoded)
		if err != nil || again.Text() != r.Text() || !bytes.Equal(again.Data(), r.Data()) {
			t.Fatalf("came back as %q %x, %v, want %q %x", again.Text(), again.Data(), err, r.Text(), r.Data())
		}
	})
}
