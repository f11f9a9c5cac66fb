package api

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// WatchLeases sends the sessions of the held shards and their changes until the client leaves.
func (s *Server) WatchLeases(request *leasev1.WatchLeasesRequest, stream grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	sessions, err := s.runningSessions()
	if err != nil {
		return s.statusOf(err)
	}
	version := versionFormat{instance: sessions.InstanceID(), parent: request.Parent}
	since, err := version.parse(request.StartVersion)
	if err != nil {
		return s.statusOf(err)
	}
	subscription, err := sessions.Watch(stream.Context(), s.convert.classesIn(request.Parent), since)
	if errors.Is(err, sessioncontroller.ErrCompacted) {
		err = errVersionTooOld()
	}
	if err != nil {
		return s.statusOf(err)
	}
	defer subscription.Close()
	resumed := since != (sessioncontroller.Version{})
	err = Follow(stream.Context(), subscription, resumed, func(e *sessioncontroller.Event) error {
		response := &leasev1.WatchLeasesResponse{Type: eventTypeOf(e.Type), Version: version.format(e.Version)}
		if e.Type == sessioncontroller.Bookmark {
			response.Freshness = s.freshness(sessions.Epoch())
		} else {
			response.Lease, response.Freshness = s.convert.lease(&e.Lease), s.freshness(e.Lease.Epoch)
		}
		return stream.Send(response)
	})
	if errors.Is(err, sessioncontroller.ErrCompacted) {
		err = errSlowWatcher()
	}
	return s.statusOf(err)
}

// versionFormat converts versions of one session controller to text and back. The text starts with
// a checksum of the version, the controller's instance and the watch's parent, so that parse
// detects a version of another controller or watch.
type versionFormat struct {
	instance uint64
	parent   string
}

const versionSize = pagetoken.ChecksumSize + 16

func (f versionFormat) format(v sessioncontroller.Version) string {
	if v == (sessioncontroller.Version{}) {
		return ""
	}
	raw := binary.BigEndian.AppendUint64(nil, v.Revision)
	raw = binary.BigEndian.AppendUint64(raw, v.Sessions)
	return base64.RawURLEncoding.EncodeToString(append(f.checksum(raw), raw...))
}

// parse returns the zero Version for an empty text, and errVersionTooOld for a text that f has not
// formatted.
func (f versionFormat) parse(text string) (sessioncontroller.Version, error) {
	if text == "" {
		return sessioncontroller.Version{}, nil
	}
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(decoded) != versionSize {
		return sessioncontroller.Version{}, errVersionTooOld()
	}
	raw := decoded[pagetoken.ChecksumSize:]
	if !bytes.Equal(decoded[:pagetoken.ChecksumSize], f.checksum(raw)) {
		return sessioncontroller.Version{}, errVersionTooOld()
	}
	return sessioncontroller.Version{Revision: binary.BigEndian.Uint64(raw), Sessions: binary.BigEndian.Uint64(raw[8:])}, nil
}

func (f versionFormat) checksum(raw []byte) []byte {
	instance := string(binary.BigEndian.AppendUint64(nil, f.instance))
	return pagetoken.Checksum("trivet.lease.v1.WatchLeases", instance, f.parent, string(raw))
}
