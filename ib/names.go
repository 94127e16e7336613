package ib

import (
	"strconv"
	"strings"
)

// name gives the entry v of a table, or kind(v) where the table has none.
func name(kind string, table []string, v int) string {
	if v >= 0 && v < len(table) && table[v] != "" {
		return table[v]
	}
	return kind + "(" + strconv.Itoa(v) + ")"
}

// flagNames joins the names of the bits in v with |; bits without a name come last as
// one hexadecimal number, none at all is 0.
func flagNames(table []string, v uint64) string {
	if v == 0 {
		return "0"
	}
	var b strings.Builder
	for i, s := range table {
		if v&(1<<i) == 0 || s == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString(s)
		v &^= 1 << i
	}
	if v != 0 {
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString("0x")
		b.WriteString(strconv.FormatUint(v, 16))
	}
	return b.String()
}
