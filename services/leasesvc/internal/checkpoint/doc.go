// Package checkpoint decides what the leader of a shard stores about silent holders, and what the
// next leader of the shard makes of it.
//
// Promise: a takeover grants each holder its full grace period, less the silence that was stored.
// So expired holders stay expired, and no stored silence alone expires a live holder.
//
// A checkpoint is always a little old: a holder may have beaten after it was written, without any
// living replica that received the beat. So these rules hold, see [Rule]:
//
//   - A silence is stored as a duration and does not age. It is a lower bound, whatever clocks say
//     and however long no replica held the shard.
//   - A holder whose stored silence is below TTL + MinGrace keeps at least MinGrace to beat at the
//     next replica.
//   - A stored silence is brought up to date while it grows and the next replica would count more.
//   - A holder with a longer stored silence was expired when the checkpoint was written, and had
//     MinGrace since to come back. It stays expired until its next beat. If it beat after the last
//     look of a lost replica, it is shown as expired until its next beat, at most MinGrace later.
//
// That last case is rare, because a silence that is no longer true is removed at the next look, see
// [Tracker]. A checkpoint that cannot be read, or that has holders of another shard or impossible
// values, is ignored: all holders then get the full grace period.
//
// The stored format is described in encoding.go. The package reads no clock and knows neither etcd
// nor shards.
package checkpoint
