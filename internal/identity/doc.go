// Package identity has the identity of a process: its replica id, its version, and its TLS
// certificates.
//
// Certificates are reloaded when the content of their files changes, without a restart and without
// a goroutine: handshakes and scrapes of the metrics read the files, at most once a second. The key
// pair and the authorities are replaced independently. Broken, incomplete or missing files never
// replace working certificates; a warning tells the cause, and the files are read again a second
// later.
//
// The package verifies that a peer's certificate was issued by the configured authority. It does no
// authorization.
package identity
