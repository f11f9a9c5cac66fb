package api_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
)

func TestPageToken_OtherListsRefuseIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arguments, last := rapid.String().Draw(t, "arguments"), rapid.StringN(1, 50, 200).Draw(t, "last")
		token := api.PageToken(arguments, last)
		if got, err := api.ParsePageToken(token, arguments); err != nil || got != last {
			t.Fatalf("got %q, error %v; want %q", got, err, last)
		}
		other := rapid.String().Filter(func(s string) bool { return s != arguments }).Draw(t, "other arguments")
		if _, err := api.ParsePageToken(token, other); err == nil {
			t.Fatal("another list accepted the token")
		}
		if got, err := api.ParsePageToken(rapid.String().Draw(t, "forged"), arguments); err == nil && got == last {
			t.Fatal("a forged token was accepted")
		}
	})
}

// fakeSource returns its batches one by one, and then waits for quiet.
type fakeSource struct{ batches [][]string }

func (s *fakeSource) NextWithin(ctx context.Context, quiet time.Duration) ([]string, error) {
	if len(s.batches) > 0 {
		events := s.batches[0]
		s.batches = s.batches[1:]
		return events, nil
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(quiet):
		return nil, nil
	}
}

func (*fakeSource) Bookmark(context.Context) (string, error) { return "bookmark", nil }

func TestFollow_SendsEventsAndBookmarks(t *testing.T) {
	errShutdown := errors.New("shutting down")
	for name, c := range map[string]struct {
		resumed bool
		want    []string
	}{
		"from the start": {want: []string{"a", "b", "c", "bookmark", "bookmark"}},
		"resumed":        {resumed: true, want: []string{"a", "b", "c", "bookmark", "bookmark", "bookmark"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(70*time.Second, func() { cancel(errShutdown) })
				var got []string
				err := api.Follow(ctx, &fakeSource{batches: [][]string{{"a", "b"}, {"c"}}}, c.resumed, func(event *string) error {
					got = append(got, *event)
					return nil
				})
				if !slices.Equal(c.want, got) {
					t.Errorf("got %v, want %v", got, c.want)
				}
				if !errors.Is(err, errShutdown) {
					t.Errorf("error %v, want the cause of the end", err)
				}
			})
		})
	}
}

func TestFollow_ReturnsTheErrorOfSend(t *testing.T) {
	errSend := errors.New("cannot send")
	err := api.Follow(t.Context(), &fakeSource{batches: [][]string{{"a"}}}, false, func(*string) error { return errSend })
	if !errors.Is(err, errSend) {
		t.Errorf("error %v, want that of send", err)
	}
}
