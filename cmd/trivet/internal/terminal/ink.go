package terminal

// Ink writes in colour, or does not. Every coloured text grows by the same number of bytes, whatever the tone: in a column
// where each cell has one, text/tabwriter, which counts bytes it should not, still aligns them.
type Ink struct{ coloured bool }

// Good is for what is well.
func (i Ink) Good(text string) string { return i.dye("32", text) }

// Fair is for what needs a look.
func (i Ink) Fair(text string) string { return i.dye("33", text) }

// Bad is for what is broken.
func (i Ink) Bad(text string) string { return i.dye("31", text) }

// Strong is for headings and for what matters most.
func (i Ink) Strong(text string) string { return i.dye("01", text) }

// Usual is for ordinary text in a coloured column.
func (i Ink) Usual(text string) string { return i.dye("39", text) }

// dye takes a code of two characters.
func (i Ink) dye(code, text string) string {
	if !i.coloured {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
