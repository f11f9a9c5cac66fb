package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
)

// copyBytes is small, because each watch keeps a buffer as long as it lasts.
const copyBytes = 8 << 10

// buffers are those of responses in progress.
type buffers struct{ pool sync.Pool }

// Get returns a buffer.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[copyBytes]byte); ok {
		return buffer[:]
	}
	return make([]byte, copyBytes)
}

// Put keeps a buffer.
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[copyBytes]byte)(buffer)) }

func (e *Endpoint) newProxy(transport http.RoundTripper, strip func(http.Header)) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // an event of a watch goes out at once
		BufferPool:    &buffers{},
		ErrorLog:      slog.NewLogLogger(e.cfg.Logger.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "https", "kubernetes" // the pool chooses the server
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			strip(p.Out.Header)
		},
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode != http.StatusSwitchingProtocols { // its body is the connection
				r.Body = closedBeside{r.Body}
			}
			return nil
		},
		ErrorHandler: e.writeFailure,
	}
}

// closedBeside is the body of a response that is closed beside the handler. Go's HTTP/2 client
// waits there for the end of the body of the request, which the kubelet does not send any more
// after a response that is an error: it waits for the end of the response, which the handler sends
// when it returns. That ends the body of the request, and so the wait.
type closedBeside struct{ io.ReadCloser }

// Close returns at once.
func (b closedBeside) Close() error {
	go func() { _ = b.ReadCloser.Close() }() // it is read, or the caller has gone
	return nil
}

// stripIdentity removes what could give the request another identity than the certificate does.
func stripIdentity(h http.Header) {
	h.Del("Authorization")
	stripFrontProxy(h)
}

func stripFrontProxy(h http.Header) {
	for name := range h {
		if strings.HasPrefix(http.CanonicalHeaderKey(name), "X-Remote-") {
			delete(h, name)
		}
	}
}

// writeFailure answers a request that got no response. A client may repeat it only if no server can
// have got it.
func (e *Endpoint) writeFailure(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeStatus(w, http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", err.Error())
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the caller has gone
	case errors.Is(err, upstream.ErrAmbiguous):
		writeStatus(w, http.StatusBadGateway, "InternalError", err.Error())
	default:
		w.Header().Set("Retry-After", "1")
		writeStatus(w, http.StatusServiceUnavailable, "ServiceUnavailable", err.Error())
	}
}

// writeStatus writes an error as kube-apiserver does.
func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
	if err != nil {
		panic(err) // a Status can be encoded
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // the caller may have gone
}

// recorder notes the code of a response and when it began.
type recorder struct {
	http.ResponseWriter
	start time.Time
	code  int
	began time.Time
}

// Unwrap gives http.ResponseController the writer, to flush, to upgrade and for deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader notes the code.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		r.code, r.began = code, time.Now()
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write notes the code that is implied.
func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code, r.began = http.StatusOK, time.Now()
	}
	return r.ResponseWriter.Write(p)
}
