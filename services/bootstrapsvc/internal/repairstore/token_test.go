package repairstore

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestToken_EncodeAndParseAreInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token := Token{
			Findings: rapid.SliceOfN(rapid.StringMatching(`findings/[-a-z0-9._:]{1,80}`), 1, 20).Draw(t, "findings"),
			Expires:  time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "expires"), 0).UTC(),
		}
		for _, step := range rapid.SliceOfN(rapid.String(), 1, 20).Draw(t, "steps") {
			token.Steps = append(token.Steps, ChecksumOf(step))
		}
		text, err := token.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(token, got); diff != "" {
			t.Fatalf("token (-want +got):\n%s", diff)
		}
	})
}

func TestParseToken_RejectsOtherTexts(t *testing.T) {
	good, err := Token{Findings: []string{"findings/a"}, Steps: []Checksum{ChecksumOf("a")}, Expires: time.Unix(1, 0)}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	steps := strings.Repeat("A", 16)
	for name, text := range map[string]string{
		"nothing":            "",
		"no base64":          "token!",
		"padded":             good + "=",
		"with a line break":  good[:8] + "\n" + good[8:],
		"cut":                good[:len(good)-4],
		"no JSON":            encode([]byte("hello")),
		"of another version": encode([]byte(`{"v":2,"f":["a"],"s":"` + steps + `","e":1}`)),
		"with a short sum":   encode([]byte(`{"v":1,"f":["a"],"s":"AAAAAAAAAAAAAAAAAAAA","e":1}`)),
		"with more fields":   encode([]byte(`{"v":1,"f":["a"],"s":"` + steps + `","e":1,"x":1}`)),
		"with spaces":        encode([]byte(`{"v": 1,"f":["a"],"s":"` + steps + `","e":1}`)),
		"with a second one":  encode([]byte(`{"v":1,"f":["a"],"s":"` + steps + `","e":1}{}`)),
		"too long":           strings.Repeat("A", MaxTokenLength+1),
	} {
		if token, err := ParseToken(text); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%s: %v, %v, want %v", name, token, err, ErrInvalidToken)
		}
	}
}

func TestEncode_RejectsTooManyFindings(t *testing.T) {
	many := Token{Findings: make([]string, 40_000)}
	if text, err := many.Encode(); err == nil {
		t.Errorf("%d bytes", len(text))
	}
}

func TestTokenID_DiffersWithTheToken(t *testing.T) {
	if a, b := TokenID("a"), TokenID("b"); a == b || len(a) != 24 {
		t.Errorf("ids %q and %q", a, b)
	}
}

func FuzzParseToken(f *testing.F) {
	good, err := Token{Findings: []string{"findings/a"}, Steps: []Checksum{ChecksumOf("a")}, Expires: time.Unix(1, 0)}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err != nil {
			return
		}
		if again, err := token.Encode(); err != nil || again != text {
			t.Fatalf("came back as %q, %v, want %q", again, err, text)
		}
	})
}
