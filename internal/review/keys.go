package review

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
)

const (
	ownerBytes = 8
	// keyBytes is the size of a key: the hash of its owner, and the hash of the question.
	keyBytes = ownerBytes + 16
)

// Key identifies a question. It is a hash, so that no key contains a secret and no two questions
// have the same key. Its first eight bytes identify the owner: the user of the question. One owner
// gets a share of the reviews and of what is kept, so that its questions hold up no other owner.
type Key [keyBytes]byte

// Keys makes the keys of the questions of one cache. It is safe for concurrent use.
//
// The hash of a question is its authentication tag by AES-GCM with a random secret, which takes a
// quarter of the time of an HMAC. Reuse of the nonce would let a reader of tags forge others, but
// no tag leaves the process. A caller that knows no tag finds two questions with one key, or the
// key of an unknown token, with a probability of about 2^-120 for each attempt.
type Keys struct {
	mac    cipher.AEAD
	nonce  []byte
	owners maphash.Seed
	pool   sync.Pool // of *Question
}

// NewKeys returns Keys with a secret of its own.
func NewKeys() *Keys {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err) // the size of the secret is wrong
	}
	mac, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // AES has the block size of GCM
	}
	k := &Keys{mac: mac, nonce: make([]byte, mac.NonceSize()), owners: maphash.MakeSeed()}
	k.pool.New = func() any { return &Question{keys: k} }
	return k
}

// Question is the text of a question. Each part is preceded by its length, and each list by its
// number of parts, so that no two questions have one text.
type Question struct {
	keys *Keys
	text []byte
	key  Key
}

// Question returns an empty question. Call Key or KeyOf once.
func (k *Keys) Question() *Question {
	q, _ := k.pool.Get().(*Question)
	return q
}

// Number adds the length of a list.
func (q *Question) Number(n int) { q.text = binary.AppendUvarint(q.text, uint64(n)) }

// Add adds one part.
func (q *Question) Add(part string) {
	q.Number(len(part))
	q.text = append(q.text, part...)
}

// AddSorted adds a list whose order does not matter.
func (q *Question) AddSorted(list []string) {
	q.Number(len(list))
	if !slices.IsSorted(list) {
		var few [16]string // on the stack
		list = append(few[:0], list...)
		slices.Sort(list)
	}
	for _, part := range list {
		q.Add(part)
	}
}

// Key returns the key of a question that is its own owner. The question must not be used after it.
func (q *Question) Key() Key {
	q.hash()
	copy(q.key[:ownerBytes], q.key[ownerBytes:])
	return q.done()
}

// KeyOf returns the key of the question of an owner. The question must not be used after it.
func (q *Question) KeyOf(owner string) Key {
	q.hash()
	binary.NativeEndian.PutUint64(q.key[:], maphash.String(q.keys.owners, owner))
	return q.done()
}

func (q *Question) hash() { q.keys.mac.Seal(q.key[:ownerBytes], q.keys.nonce, nil, q.text) }

// done clears the question, which may have a token.
func (q *Question) done() Key {
	key := q.key
	clear(q.text)
	q.text = q.text[:0]
	q.keys.pool.Put(q)
	return key
}
