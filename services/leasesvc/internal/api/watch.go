package api

import (
	"context"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"

	"github.com/trivet-dev/trivet/internal/resumetoken"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// bookmarkPeriod is the longest time between two bookmarks of a watch.
const bookmarkPeriod = 30 * time.Second

func (s *leaseServer) WatchLeases(request *leasev1.WatchLeasesRequest, stream grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	sessions, err := s.runningSessions()
	if err != nil {
		return s.statusOf(err)
	}
	arguments := leaseArguments{parent: request.Parent, states: request.States}
	tokens := resumeTokens(sessions, arguments)
	since, err := tokens.parse(request.ResumeToken)
	if err != nil {
		return s.statusOf(err)
	}
	subscription, err := sessions.Watch(stream.Context(), s.selection(arguments), since)
	if err != nil {
		return s.statusOf(err)
	}
	defer subscription.Close()
	return s.statusOf(followLeases(stream.Context(), subscription, func(e *sessioncontroller.Event) error {
		response := &leasev1.WatchLeasesResponse{Type: eventTypeOf(e.Type), ResumeToken: tokens.format(e.Version)}
		if e.Type == sessioncontroller.Bookmark {
			response.Bookmark = &metav1.Bookmark{InitialEventsEnd: e.InitialEnd, Sources: s.sources(e.Shards)}
		} else {
			response.Lease = s.leaseOf(&e.Lease)
		}
		return stream.Send(response)
	}))
}

// followLeases sends the events of a subscription until ctx ends or a call fails, and returns the
// cause. A session whose shard was lost is not sent as Deleted: the next bookmark lacks the shard.
func followLeases(ctx context.Context, subscription *sessioncontroller.Subscription, send func(*sessioncontroller.Event) error) error {
	bookmarkDue := time.Now().Add(bookmarkPeriod)
	for {
		events, err := nextEvents(ctx, subscription, time.Until(bookmarkDue))
		if ctx.Err() != nil {
			return context.Cause(ctx) // SHUTTING_DOWN if the server ends its streams
		}
		if err != nil {
			return err
		}
		for i := range events {
			if events[i].ShardLost {
				continue
			}
			if events[i].Type == sessioncontroller.Bookmark {
				bookmarkDue = time.Now().Add(bookmarkPeriod)
			}
			if err := send(&events[i]); err != nil {
				return err
			}
		}
	}
}

// nextEvents returns a bookmark if there are no events within the time.
func nextEvents(ctx context.Context, subscription *sessioncontroller.Subscription, within time.Duration) ([]sessioncontroller.Event, error) {
	if within > 0 {
		if events, err := subscription.NextWithin(ctx, within); err != nil || len(events) > 0 {
			return events, err
		}
	}
	bookmark, err := subscription.Bookmark(ctx)
	return []sessioncontroller.Event{bookmark}, err
}

func eventTypeOf(eventType sessioncontroller.EventType) metav1.EventType {
	return [...]metav1.EventType{
		sessioncontroller.Added:    metav1.EventType_EVENT_TYPE_ADDED,
		sessioncontroller.Modified: metav1.EventType_EVENT_TYPE_MODIFIED,
		sessioncontroller.Deleted:  metav1.EventType_EVENT_TYPE_DELETED,
		sessioncontroller.Bookmark: metav1.EventType_EVENT_TYPE_BOOKMARK,
	}[eventType]
}

// tokens converts versions of one session controller to resume tokens and back.
type tokens struct{ resumetoken.Format }

func resumeTokens(sessions Sessions, arguments leaseArguments) tokens {
	return tokens{resumetoken.Format{
		Instance: sessions.InstanceID(), Method: leasev1.LeaseService_WatchLeases_FullMethodName, Arguments: arguments.String(),
	}}
}

// format returns "" for the zero Version.
func (t tokens) format(v sessioncontroller.Version) string {
	if v == (sessioncontroller.Version{}) {
		return ""
	}
	return t.Encode(v.Revision, v.Sessions)
}

// parse returns the zero Version for an empty text.
func (t tokens) parse(text string) (sessioncontroller.Version, error) {
	if text == "" {
		return sessioncontroller.Version{}, nil
	}
	revisions, err := t.Parse(text, 2)
	if err != nil {
		return sessioncontroller.Version{}, err
	}
	return sessioncontroller.Version{Revision: revisions[0], Sessions: revisions[1]}, nil
}
