package listwatch_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/listwatch"
)

func TestPageToken_OtherListsRefuseIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arguments, last := rapid.String().Draw(t, "arguments"), rapid.StringN(1, 50, 200).Draw(t, "last")
		token := listwatch.PageToken(arguments, last)
		if got, err := listwatch.ParsePageToken(token, arguments); err != nil || got != last {
			t.Fatalf("got %q, error %v; want %q", got, err, last)
		}
		other := rapid.String().Filter(func(s string) bool { return s != arguments }).Draw(t, "other arguments")
		if _, err := listwatch.ParsePageToken(token, other); err == nil {
			t.Fatal("another list accepted the token")
		}
		if got, err := listwatch.ParsePageToken(rapid.String().Draw(t, "forged"), arguments); err == nil && got == last {
			t.Fatal("a forged token was accepted")
		}
	})
}
