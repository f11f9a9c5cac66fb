// Package fleet makes one view of named items out of what several replicas tell of theirs, and hands every reader the newest
// state of each item.
//
// It decides and does nothing else: no I/O, no clock, no lock. [State] belongs to one caller at a time.
//
// # Replicas
//
// A replica tells of its items one after the other: all that exist, a bookmark, then changes. Three rules make one view:
//
//   - Of two words about a name the one of the later term wins, by its epoch; a word of an earlier term is ignored, be it that
//     the item exists or that it is gone. Within a term the later word wins.
//   - That an item is gone is believed after [Hold]. A replica that loses a shard says that every item of it is gone, and its
//     successor speaks up a moment later: what is told of again in time was never gone, it moved.
//   - A replica that fails takes nothing with it. What it told stands until it has told everything anew, and then lacks what it
//     did not mention, or until it has left for good; meanwhile it is among the missing.
//
// Where every replica tells of every item, [NewShared] has the rules.
//
// # Readers
//
// A reader gets each item that it wants as Added once, then Modified, then Removed, and again from the start if the item comes
// back. States between two looks are skipped, the last one never. For a reader the state keeps two bits for each item, however
// slow it is; a removed item is remembered until the last reader who knows of it has been told.
package fleet
