// Package identity has the identity of a process: its replica id, its version, and its TLS
// certificates.
//
// Certificates are reloaded when their files change, without a restart and without a goroutine:
// handshakes check the files, at most once a second. Broken, incomplete or missing files never
// replace working certificates; the problem is logged once for each change.
//
// The package verifies that a peer's certificate was issued by the configured authority. It does no
// authorization.
package identity
