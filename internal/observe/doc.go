// Package observe is how a process shows what it does: logs, metrics, health
// checks, and the HTTP server for people and probes that serves them.
//
// # Invariants
//
//   - Every line a process logs passes through one slog handler, those of
//     client-go and grpc included, once [Bridge] was called.
//   - The admin server bounds every request: its header's size, the time it
//     takes to arrive and to be answered, and how many costly ones run at
//     once. Its probes answer from memory.
//   - A check never blocks; whoever adds one keeps its result up to date.
//
// # Not here
//
// The admin server is plain HTTP and asks nobody who they are. It is meant
// for loopback or a pod network, and it changes nothing. Tracing is not here.
package observe
