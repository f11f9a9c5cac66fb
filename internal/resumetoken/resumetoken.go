// Package resumetoken encodes the position of a watch as a resume token.
//
// A token is a checksum followed by one or more revisions, in base64url. The checksum covers the
// instance that counts the revisions, the method, the arguments of the watch and the revisions. So
// a token of another process, of another watch or a damaged token is refused. A token grants no
// access.
package resumetoken

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/pagetoken"
	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// ErrExpired says that a watch cannot resume at a token. It is a complete RPC error: a handler
// returns it unchanged.
var ErrExpired = rpcerror.New(codes.OutOfRange, rpcerror.ResumeTokenExpiredReason,
	"resume_token is too old, or not from this replica and this watch; watch again without it")

// Format converts revisions to tokens and back. All its fields must be equal for both.
type Format struct {
	// Instance identifies what counts the revisions. It is random, so that a restarted process does
	// not accept the tokens of its predecessor.
	Instance uint64
	// Method is the full name of the watch, for example "trivet.lease.v1.LeaseService/WatchLeases".
	Method string
	// Arguments are the values that select what the watch sends.
	Arguments string
}

const revisionSize = 8

// Encode returns the token of revisions, of which there is at least one.
func (f Format) Encode(revisions ...uint64) string {
	raw := make([]byte, 0, revisionSize*len(revisions))
	for _, revision := range revisions {
		raw = binary.BigEndian.AppendUint64(raw, revision)
	}
	return base64.RawURLEncoding.EncodeToString(append(f.checksum(raw), raw...))
}

// Parse returns the n revisions of a token that Encode made with the same Format. Otherwise, and
// for the empty text, it returns ErrExpired.
func (f Format) Parse(text string, n int) ([]uint64, error) {
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(decoded) != pagetoken.ChecksumSize+n*revisionSize {
		return nil, ErrExpired
	}
	raw := decoded[pagetoken.ChecksumSize:]
	if !bytes.Equal(decoded[:pagetoken.ChecksumSize], f.checksum(raw)) {
		return nil, ErrExpired
	}
	revisions := make([]uint64, n)
	for i := range revisions {
		revisions[i] = binary.BigEndian.Uint64(raw[i*revisionSize:])
	}
	return revisions, nil
}

func (f Format) checksum(raw []byte) []byte {
	instance := string(binary.BigEndian.AppendUint64(nil, f.Instance))
	return pagetoken.Checksum(f.Method, instance, f.Arguments, string(raw))
}
