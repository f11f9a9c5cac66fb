// Package api serves trivet.slice.v1.SliceService.
//
// Promise: every replica answers every read, for all Services, from its own caches. An answer
// carries a Freshness that never claims more than the answer contains. Until the caches are filled,
// and after Stop, every RPC fails with UNAVAILABLE.
//
// The package decides nothing: it converts what the slice controller returns, and maps errors to
// statuses in one table. All methods are safe for concurrent use.
package api
