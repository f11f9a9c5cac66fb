package rpcserver

// LastString is lastString, for fuzzing.
var LastString = lastString
