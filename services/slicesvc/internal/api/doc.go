// Package api serves trivet.slice.v1.SliceService.
//
// Promise: every replica answers every read, for all Services, from its own caches. The Source of
// an answer never claims more than the answer contains. Until the caches are filled, and after
// Stop, every RPC fails with UNAVAILABLE.
//
// Watches read the change log of the slice controller. Run records there which replica leads each
// shard, so that a watch sends the Services of a shard that moved, and a resumed watch does, too.
//
// The package decides nothing: it converts what the slice controller returns, and maps errors to
// statuses in one table. All methods are safe for concurrent use.
package api
