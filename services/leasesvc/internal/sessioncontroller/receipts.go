package sessioncontroller

// Receipts are what this replica receives of the beats of holders, since its process began.
type Receipts struct {
	// Beats are the beats received over streams, by unary calls and from peers, accepted or not.
	Beats uint64
	// Streams is the number of open heartbeat streams.
	Streams int
	// LostStreams are the streams that ended although neither this replica nor the client ended
	// them in order: the connection was lost, or the client is gone.
	LostStreams uint64
}
