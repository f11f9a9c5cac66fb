// Package rotation tests that calls go on while certificates and authorities change, with the plan
// of internal/certs, servers and clients of production code, and mounted files that lag behind.
package rotation
