package watch_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stream is a scripted stream: its events, and the error at its end; nil blocks.
type stream struct {
	events []watch.Event[string]
	err    error
}

// run runs a watch of scripted streams until the given number of updates, and returns the updates
// and the tokens of the opened streams.
func run(t *testing.T, timeout time.Duration, updates int, streams ...stream) (got []string, tokens []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	open := func(ctx context.Context, token string) (watch.Receive[string], error) {
		tokens = append(tokens, token)
		s := stream{err: errors.New("no further stream")}
		if len(tokens) <= len(streams) {
			s = streams[len(tokens)-1]
		}
		return func() (watch.Event[string], error) {
			if len(s.events) > 0 {
				event := s.events[0]
				s.events = s.events[1:]
				return event, nil
			}
			if s.err == nil {
				<-ctx.Done()
				return watch.Event[string]{}, ctx.Err()
			}
			return watch.Event[string]{}, s.err
		}, nil
	}
	channel, ended := make(chan watch.Update[string]), make(chan struct{})
	go func() {
		defer close(ended)
		watch.Watch[string]{Open: open, Timeout: timeout}.Run(ctx, channel)
	}()
	for range updates {
		select {
		case update := <-channel:
			switch {
			case update.Anew:
				got = append(got, "anew")
			case update.Lost != nil:
				got = append(got, "lost: "+update.Lost.Error())
			default:
				got = append(got, update.Event.Item)
			}
		case <-ctx.Done():
			t.Fatalf("got only %q", got)
		}
	}
	cancel()
	<-ended
	return got, tokens
}

func item(name, token string) watch.Event[string] {
	return watch.Event[string]{Type: metav1.EventType_EVENT_TYPE_ADDED, Item: name, ResumeToken: token}
}

func endOfInitial() watch.Event[string] {
	return watch.Event[string]{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Item: "end", Bookmark: &metav1.Bookmark{InitialEventsEnd: true}}
}

func TestRun_ResumesWithTheLastTokenThatIsNotEmpty(t *testing.T) {
	got, tokens := run(t, time.Minute, 6, stream{events: []watch.Event[string]{item("a", "t1"), item("b", ""), endOfInitial()}, err: errors.New("gone")},
		stream{events: []watch.Event[string]{item("c", "t2")}})
	if want := "anew a b end lost: gone c"; strings.Join(got, " ") != want {
		t.Errorf("updates %q, want %s", got, want)
	}
	if want := "|t1"; strings.Join(tokens, "|") != want {
		t.Errorf("tokens %q, want %s", tokens, want)
	}
}

// An expired token begins the watch anew at once. A stream without a token that is refused for the
// same reason is a loss, with a pause, so that a broken gateway is not flooded.
func TestRun_ExpiredToken(t *testing.T) {
	expired := rpcerror.New(codes.OutOfRange, "RESUME_TOKEN_EXPIRED", "expired")
	began := time.Now()
	got, tokens := run(t, time.Minute, 6, stream{events: []watch.Event[string]{item("a", "t1")}, err: errors.New("gone")}, stream{err: expired}, stream{err: expired},
		stream{events: []watch.Event[string]{item("b", "")}})
	if len(got) != 6 || got[3] != "anew" || !strings.HasPrefix(got[4], "lost: ") || got[5] != "anew" {
		t.Errorf("updates %q, want anew, a, lost, anew, lost, anew", got)
	}
	if want := "|t1|"; !strings.HasPrefix(strings.Join(tokens, "|"), want) {
		t.Errorf("tokens %q, want %s first", tokens, want)
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("took %s, want a pause of a second after each loss", took)
	}
}

func TestRun_SilenceBeforeTheEndOfTheInitialEventsIsALoss(t *testing.T) {
	got, _ := run(t, 200*time.Millisecond, 3, stream{events: []watch.Event[string]{item("a", "")}})
	if want := "anew a lost: no message from the gateway for 200ms"; strings.Join(got, " ") != want {
		t.Errorf("updates %q, want %s", got, want)
	}
	// After it, a bookmark is due every 30 seconds only.
	got, _ = run(t, 200*time.Millisecond, 4, stream{events: []watch.Event[string]{item("a", ""), endOfInitial(), item("b", "")}})
	if want := "anew a end b"; strings.Join(got, " ") != want {
		t.Errorf("updates %q, want %s", got, want)
	}
}
