package faultcontroller

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"mime"
	"net/http"

	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
)

const (
	// Path is the path of the routes.
	Path = "/demo/"
	// BreakPath takes a fault.Request, RestorePath a fault.Target.
	BreakPath, RestorePath = Path + "break", Path + "restore"
	// SocketVariable is the environment variable with the path of the socket that serves the
	// routes.
	SocketVariable = "TRIVET_DEMO_SOCKET"
	// TokenHeader has the token of a Report.
	TokenHeader = "Trivet-Demo-Token"
	// maxBody limits the body of a request.
	maxBody = 4 << 10
)

// Report is the answer of Path.
type Report struct {
	// Token allows a page to break and to restore; empty where none is needed.
	Token string `json:"token,omitempty"`
	// Cores is the CPU that the demo uses, in cores; 0 while it is not known.
	Cores  float64          `json:"cores"`
	Kinds  []fault.KindInfo `json:"kinds"`
	Faults []fault.Fault    `json:"faults"`
}

// RestoreReply is the answer of RestorePath.
type RestoreReply struct {
	Restored []fault.Target `json:"restored"`
}

// Failure is the answer to a request that failed.
type Failure struct {
	Error string `json:"error"`
}

// Handler serves the routes. Requests that change something must have the token in a header, unless
// it is empty. A page of another origin reads no answer and sends no such header, so that it does
// not get the token and cannot use it.
func Handler(c *Controller, cores func() float64, token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path+"{$}", func(w http.ResponseWriter, r *http.Request) {
		kinds, faults, err := c.List(r.Context())
		answer(w, Report{Token: token, Cores: cores(), Kinds: kinds, Faults: faults}, err)
	})
	mux.HandleFunc("POST "+BreakPath, changing(token, func(w http.ResponseWriter, r *http.Request) {
		var request fault.Request
		if !read(w, r, &request) {
			return
		}
		f, err := c.Break(r.Context(), request)
		answer(w, f, err)
	}))
	mux.HandleFunc("POST "+RestorePath, changing(token, func(w http.ResponseWriter, r *http.Request) {
		var target fault.Target
		if !read(w, r, &target) {
			return
		}
		restored, err := c.Restore(r.Context(), target)
		answer(w, RestoreReply{Restored: restored}, err)
	}))
	return mux
}

// changing refuses requests without the token. A form of another page cannot send JSON either.
func changing(token string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		switch {
		case subtle.ConstantTimeCompare([]byte(r.Header.Get(TokenHeader)), []byte(token)) != 1:
			write(w, http.StatusForbidden, Failure{Error: "the header " + TokenHeader + " does not have the token of this demo"})
		case media != "application/json":
			write(w, http.StatusUnsupportedMediaType, Failure{Error: "the body is not application/json"})
		default:
			next(w, r)
		}
	}
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		write(w, http.StatusBadRequest, Failure{Error: "read the request: " + err.Error()})
		return false
	}
	return true
}

func answer(w http.ResponseWriter, value any, err error) {
	refused := new(RefusedError)
	switch {
	case err == nil:
		write(w, http.StatusOK, value)
	case errors.As(err, &refused):
		write(w, http.StatusBadRequest, Failure{Error: err.Error()})
	default:
		write(w, http.StatusServiceUnavailable, Failure{Error: err.Error()})
	}
}

func write(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}
