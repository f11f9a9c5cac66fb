// Package callframe writes the HTTP/2 frames of gRPC calls for tests that need no client of gRPC:
// those that misbehave, and those that are too many.
package callframe

import (
	"bytes"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Headers returns the frame that begins a call of a full method name on a stream. It depends on no
// earlier frame and changes no state of the connection, so each stream may begin with the same one.
func Headers(stream uint32, authority, method string) http2.HeadersFrameParam {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: authority},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		field.Sensitive = true        // it is not added to the connection's table
		_ = encoder.WriteField(field) // a buffer takes all
	}
	return http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}
}
