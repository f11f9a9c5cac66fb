// Package heldshards says which shards are held here, and sees to it that no write outlives the term under which it was made.
//
// Promise: whoever wants to write under a shard's term asks its Tenure first and gets the term's context; Finish returns only
// when every write that was let begin has returned, and none begins after it. The Board shows the tenures of the moment to all
// who act for shards, whatever they keep of them.
//
// It writes nothing, and knows neither sessions nor Nodes.
package heldshards
