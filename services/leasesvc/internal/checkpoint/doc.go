// Package checkpoint decides what the holder of a shard stores of its silent holders, and what the next one makes of it.
//
// Promise: a takeover grants one full grace, less the silence that was stored; so those who are long dead stay dead, and those
// who live are not counted out by what somebody else remembers of them.
//
// A checkpoint is always a little old. It says that a holder was silent, and between that and the loss of the one who wrote it
// the holder may have beaten; nobody alive has heard it. Three rules follow, see [Rule]:
//
//   - A silence is stored as a duration and does not age. It is a lower bound of what a holder that is still silent has been
//     silent for, whoever's clock stands wrong and however long nobody held the shard. It errs towards life.
//   - A holder whose stored silence is not beyond its TTL by a whole Floor, which is one interval and the time in which agents
//     find a new server, is left a Floor at least to be heard by the next replica. So a stored silence alone never kills: it
//     only takes from the grace what a living holder has no use for.
//   - A holder that was silent for longer than that was expired when the checkpoint was written, and had a Floor since to come
//     back. It stays expired until it beats. Should it have beaten in the moment between the last look of the one before and
//     its loss, this one shows it as expired until the next beat, which is due within a Floor.
//
// That moment is short, because what has become untrue is taken back at once: see [Ledger]. Whatever cannot be read, is of an
// unknown version, names holders that do not belong to the shard, or claims what is impossible, is no checkpoint at all, which
// means a full grace for everybody.
//
// The package reads no clock and knows neither etcd nor shards.
package checkpoint
