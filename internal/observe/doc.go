// Package observe has logs, metrics, health checks, and the admin HTTP server that serves them.
//
// # Invariants
//
//   - After [Bridge], every log line of a process passes through one slog handler, including those
//     of client-go and gRPC.
//   - The admin server bounds every request: the size of its header, its duration, and the number
//     of concurrent costly requests. Probes read memory.
//   - A check never blocks. The code that adds a check keeps its result up to date.
//
// The admin server asks for credentials and rights, except for its probes; with --insecure it is on
// loopback. It changes nothing but the log level, which returns by itself.
package observe
