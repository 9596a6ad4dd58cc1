// Package strict reads YAML and JSON documents without forgiveness: every value knows its line, column and path, and all
// faults of a document that can be parsed are told together. Of one that cannot, the error is the first that the parser meets: it hides
// duplicate keys before it, and nesting is then told where the parser gives up, in JSON at 10,000 levels.
//
// [YAML] and [JSON] give the root [Node] of one document. A reader walks it with typed methods; what does not fit is
// recorded, reading goes on, and [Result] ends it:
//
//	root, err := strict.YAML(file, data)
//	if err != nil {
//		return nil, err
//	}
//	c.Device = root.Need("device").Text()
//	c.Poll = root.Get("poll").Duration()
//	root.Close() // members that were not read are faults, with "did you mean"
//	return strict.Result(root, c)
//
// Refused before anything is read: bytes that are not UTF-8, emptiness, too many bytes, more than one document, trailing
// data, duplicate keys, directives, anchors, aliases, merge keys and tags, nesting deeper than [MaxDepth], numbers that YAML's
// versions read differently ("017", "1_000", "0x1f"), and in YAML characters that some readers take for the end of a line or
// skip (a carriage return alone, U+0085, U+2028, U+2029, U+FEFF), if not as escapes.
//
// A YAML document with more than 200,000 characters that can begin a value is refused before the YAML library reads it, because
// the library would need some hundred MiB of memory.
//
// Methods of a nil Node do nothing and return zero values, so that optional members read without an if.
package strict

// Limits of one document.
const (
	MaxYAML   = 1 << 20 // bytes
	MaxJSON   = 4 << 20 // bytes; a state manifest of 10,000 deployments has 3 MB
	MaxDepth  = 64      // nested objects and lists
	maxValues = 100_000 // values, so that a small document cannot ask for much memory
	maxFaults = 50      // more faults than this do not help
)

// Kind tells the kinds of values apart.
type Kind int

// Kinds of values.
const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Object
)

func (k Kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}
