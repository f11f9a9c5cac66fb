// Package loglevel describes the log level on the admin server of a process, for the server and for
// its clients.
package loglevel

import "time"

// Path is the path of the log level on the admin server.
const Path = "/debug/log-level"

// State is the answer of Path, as JSON.
type State struct {
	Level      string `json:"level"`
	Configured string `json:"configured"`
	// Until is when the level is the configured one again; nil if it is.
	Until *time.Time `json:"until,omitempty"`
}
