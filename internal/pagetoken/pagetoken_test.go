package pagetoken_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/pagetoken"
)

func TestParse_ReturnsEncodedPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		position := rapid.StringN(1, 50, -1).Draw(t, "position")
		arguments := rapid.SliceOfN(rapid.String(), 1, 4).Draw(t, "arguments")
		got, err := pagetoken.Parse(pagetoken.Encode(position, arguments...), arguments...)
		if err != nil || got != position {
			t.Errorf("Parse = %q, %v; want %q", got, err, position)
		}
	})
}

// Replicas of two versions serve one list during an upgrade.
func TestEncode_IsStableAcrossVersions(t *testing.T) {
	const want = "foZHSMbvPalzaG9wL3dlYg"
	if got := pagetoken.Encode("shop/web", "trivet.slice.v1.ListServiceSlices", "shop"); got != want {
		t.Errorf("Encode = %q, want %q", got, want)
	}
}

func TestParse_RefusesOtherTokens(t *testing.T) {
	token := pagetoken.Encode("node-a", "List", "ready")
	for name, test := range map[string]struct {
		token     string
		arguments []string
	}{
		"empty":           {arguments: []string{"List", "ready"}},
		"checksum only":   {token: token[:11], arguments: []string{"List", "ready"}},
		"not base64":      {token: token + "=", arguments: []string{"List", "ready"}},
		"changed":         {token: token[:len(token)-1] + "w", arguments: []string{"List", "ready"}},
		"other RPC":       {token: token, arguments: []string{"Watch", "ready"}},
		"other arguments": {token: token, arguments: []string{"List", "lost"}},
		"no arguments":    {token: token},
	} {
		t.Run(name, func(t *testing.T) {
			if position, err := pagetoken.Parse(test.token, test.arguments...); !errors.Is(err, pagetoken.ErrInvalid) {
				t.Errorf("Parse = %q, %v; want ErrInvalid", position, err)
			}
		})
	}
}

// A token that is taken is the one that Encode makes of its position.
func FuzzParse(f *testing.F) {
	f.Add("", "List")
	f.Add(pagetoken.Encode("node-a", "List"), "List")
	f.Add(pagetoken.Encode("../\x00\xff", "List", "\x00"), "List\x00")
	f.Add("AAAAAAAAAAA", "")
	f.Fuzz(func(t *testing.T, token, argument string) {
		position, err := pagetoken.Parse(token, argument)
		if err != nil {
			if !errors.Is(err, pagetoken.ErrInvalid) || position != "" {
				t.Errorf("Parse(%q) = %q, %v", token, position, err)
			}
			return
		}
		if pagetoken.Encode(position, argument) != strings.NewReplacer("\r", "", "\n", "").Replace(token) {
			t.Errorf("Parse(%q) accepts a token that Encode does not make", token)
		}
	})
}
