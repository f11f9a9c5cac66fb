// Package identity says who a process is and how it proves it: its replica id, its version, and the certificate files
// behind its TLS.
//
// Promise: certificates are read again when their files change, without a restart and without a goroutine: every handshake
// looks at the files, at most once a second for all handshakes together. Files that are broken, half written or gone never
// replace what works: the old certificates stay in use and the problem is logged once for each change.
//
// The package authorizes nobody. It verifies that a peer's certificate was issued by the configured authority; what that
// peer may do is somebody else's decision.
package identity
