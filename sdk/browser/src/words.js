/** What the bell says, in English and French. */

const WORDS = {
  en: {
    title: 'Notifications',
    all: 'Mark all as read',
    more: 'Show more',
    loading: 'Loading…',
    empty: 'No notifications',
    failed: 'The list could not be loaded.',
    untitled: 'Notification',
    new: 'New: ',
    none: 'No unread notifications',
    one: '1 unread notification',
    many: ' unread notifications',
  },
  fr: {
    title: 'Notifications',
    all: 'Tout marquer comme lu',
    more: 'Afficher plus',
    loading: 'Chargement…',
    empty: 'Aucune notification',
    failed: 'La liste n’a pas pu être chargée.',
    untitled: 'Notification',
    new: 'Nouveau : ',
    none: 'Aucune notification non lue',
    one: '1 notification non lue',
    many: ' notifications non lues',
  },
};

/** Seconds in each unit. @type {[Intl.RelativeTimeFormatUnit, number][]} */
const UNITS = [
  ['year', 31_536_000], ['month', 2_592_000], ['day', 86_400], ['hour', 3_600], ['minute', 60],
];

/** @param {string} lang */
export function words(lang) {
  const name = /^fr\b/i.test(lang) ? 'fr' : 'en';
  const say = WORDS[name];
  // The region says how dates are written. A language that the bell does not speak must not appear in them alone.
  const locale = lang.toLowerCase().startsWith(name) ? lang : name;
  /** @param {number} count */
  const unread = (count) => (count > 1 ? new Intl.NumberFormat(name).format(count) + say.many : count ? say.one : say.none);
  return {
    ...say,
    unread,
    /** @param {number} count */
    bell: (count) => `${say.title}, ${unread(count).toLowerCase()}`,
    /** @param {Date} date */
    date: (date) => new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeStyle: 'short' }).format(date),
    /** @param {number} seconds negative: in the past */
    ago(seconds) {
      const format = new Intl.RelativeTimeFormat(locale, { numeric: 'auto' });
      const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ['second', Infinity];
      return format.format(Math.trunc(seconds / size), unit);
    },
  };
}
