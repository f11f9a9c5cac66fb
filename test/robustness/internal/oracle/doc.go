// Package oracle judges the record of a run. Each rule is a function from a history to lags and
// violations, without I/O, clock or state.
//
// A rule of the form "never" gives a violation for each breach. A rule of the form "not for longer
// than a bound" gives a lag for each time in which it did not hold; Check compares the part of it
// that no fault excuses with the bound. So one run shows both whether a promise was kept, and how
// close it was.
//
//	holder       a shard has a leader                                  bound
//	act          a write is sent while its process leads the shard     never otherwise
//	stale        no term writes over the write of a later term         never
//	living       a node that lives is not marked Unknown               never
//	dead         a node that is dead is marked Unknown                 bound
//	lease        the Lease of a node with an agent has not lapsed      bound
//	regress      the renewTime of a Lease does not go back             never
//	present      a gone or unready Pod is no ready endpoint            bound
//	absent       a ready Pod is a ready endpoint                       bound
//	duplicate    an address is in one EndpointSlice of a Service       bound
//	empty        default/kubernetes has an endpoint                    never
//	published    the endpoint of a dead kube-apiserver leaves          bound
//	unpublished  the endpoint of a running kube-apiserver is there     bound
//	unallocated  what a Service uses is allocated                      bound
//	shared       two Services do not use one address or port           never
//	foreign      an object of another program does not change          never
//	answer       a leader that the gateway names led in the meantime   never, but in a partial answer
//	silence      the gateway answers                                   bound
//	told         a list of the gateway has each Node, EndpointSlice    bound and the stated age, but
//	             and mark as it is                                      for shards labelled missing
//	lost         an accepted change of a mark is in etcd, and no       never otherwise
//	             other change is
//	labelled     an answer without a leader that does not run says so  never
//	call         a call with Trivet's retries succeeds                 never, or bound after a fault that clients notice
//	level        memory, goroutines, files and counts are in limits    never
package oracle
